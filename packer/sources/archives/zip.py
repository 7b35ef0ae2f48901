"""List zip files: every file of the media that a build takes is an item, named by its path in the archive."""

from packer.sources.archives.listing import ArchiveListing, ListedArchive
from packer.sources.archives.member import Member
from packer.sources.archives.zip_directory import ZipDamage, zip_entries
from packer.vision.media import describe_media, medium_of

_NESTED = (".zip", ".tar", ".tar.gz", ".tgz", ".7z", ".rar")


def list_zip(place: ListedArchive) -> ArchiveListing:
    """List the items of one zip file. A file whose directory cannot be read is one reject."""
    found = ArchiveListing()
    try:
        for entry in zip_entries(place.archive.path):
            if entry.name.lower().endswith(_NESTED):
                what = describe_media(place.media)
                reason = f"expected {what}, found an archive within the archive: unpack the outer one"
                found.items.append(place.item(entry.name, reject=reason))
            elif medium_of(entry.name, place.media) is None:
                found.ignored.add(place.name_of(entry.name))
            elif entry.fault is not None:
                found.items.append(place.item(entry.name, reject=entry.fault))
            else:
                member = Member("zip", entry.place, place.bytes)
                found.items.append(place.item(entry.name, entry.size, member=member))
    except ZipDamage as damage:
        found.items.append(place.rest(str(damage)))
    return found
