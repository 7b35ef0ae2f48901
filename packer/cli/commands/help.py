"""``packer help [TOPIC]``."""

import argparse

from packer.cli.commands.build import TOPICS, add_group
from packer.cli.output import print_out
from shardspec.wording import program


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", nargs="?", choices=list(TOPICS), help="a topic, or a command")


def run(options: argparse.Namespace) -> int:
    if options.topic is None:
        listed = "\n".join(f"  {name:<10} {topic.title}" for name, topic in TOPICS.items())
        print_out(f"Topics of {program()} build:\n\n{listed}\n")
        print_out(f"{program()} help TOPIC shows the options of a topic; {program()} help COMMAND those of a command.")
        return 0
    topic = TOPICS[options.topic]
    page = argparse.ArgumentParser(
        usage=argparse.SUPPRESS, description=topic.text, epilog=f"More: {topic.page}", add_help=False
    )
    add_group(page, topic.title, topic.options)
    print_out(page.format_help().strip())
    return 0
