"""The order in which files of remote datasets are downloaded and deleted, without files."""

import random
from collections.abc import Iterable

import pytest

from readers.staging.schedule import CacheSchedule, Fetch, FileKey, Plan


def key(number: int) -> FileKey:
    return "dataset", f"shard-{number:05d}"


def schedule_of(count: int, limit: int, size: int = 10) -> CacheSchedule:
    schedule = CacheSchedule(limit)
    for number in range(count):
        schedule.add(key(number), size, held=False)
    return schedule


def plan(schedule: CacheSchedule, uses: Iterable[tuple[int, int]], client: int = 0) -> Plan:
    made = schedule.plans.setdefault((client, 0), Plan())
    for batch, number in uses:
        made.extend(batch, batch, [schedule.files[key(number)]])
    return made


def fetch(schedule: CacheSchedule, now: float = 0.0) -> str | None:
    """Download the next file, and return its name."""
    found = schedule.next(now)
    if found is None:
        return None
    schedule.finish(found.file, present=True)
    return found.file.key[1]


def full_schedule(count: int) -> CacheSchedule:
    """A cache that holds two files, each in use by a client."""
    schedule = schedule_of(count, 20)
    for number in range(2):
        schedule.request(number, 0, [key(number)], pin=True)
        fetch(schedule)
        schedule.ready()
    return schedule


def test_waiting_clients_come_first_then_near_uses() -> None:
    schedule = schedule_of(6, 100)
    plan(schedule, [(0, 1), (3, 2)])
    plan(schedule, [(2, 3)], client=1)
    schedule.request(2, 0, [key(5)], pin=True)
    assert fetch(schedule) == key(5)[1]
    assert [request.client for request in schedule.ready()] == [2]
    assert [fetch(schedule) for _ in range(4)] == [key(1)[1], key(3)[1], key(2)[1], None]


def test_a_first_batch_has_the_whole_link() -> None:
    schedule = schedule_of(4, 100)
    made = plan(schedule, [(0, 0), (0, 1), (1, 2), (2, 3)])
    schedule.request(0, 1, [key(2)], pin=True)  # of another thread, for the next batch
    schedule.request(0, 0, [key(1)], pin=True)
    begun = [schedule.next(0.0) for _ in range(4)]
    assert [found and found.file.key for found in begun] == [key(2), key(1), key(0), None]
    assert begun[1] is not None
    schedule.finish(begun[1].file, present=True)
    assert schedule.next(0.0) is None  # the first batch still needs shard 0
    made.move(1)
    assert fetch(schedule) == key(3)[1]


def test_the_file_with_the_farthest_next_use_is_deleted() -> None:
    schedule = schedule_of(4, 30)
    for number in range(3):
        schedule.request(0, number, [key(number)], pin=False)
        fetch(schedule)
        schedule.ready()
    plan(schedule, [(1, 2), (2, 0), (9, 1)])
    schedule.request(0, 9, [key(3)], pin=False)
    found = schedule.next(0.0)
    assert found is not None
    assert [file.key for file in found.evicted] == [key(1)]


def test_a_planned_file_takes_no_room_from_nearer_uses() -> None:
    schedule = schedule_of(3, 20)
    plan(schedule, [(0, 0), (1, 1), (5, 2)])
    assert [fetch(schedule) for _ in range(3)] == [key(0)[1], key(1)[1], None]
    schedule.plans[0, 0].move(1)  # shard 0 is not needed any more
    assert fetch(schedule) == key(2)[1]
    assert schedule.files[key(0)].state == "absent"


def test_a_file_in_use_stays_until_it_is_released() -> None:
    schedule = full_schedule(3)
    schedule.request(2, 0, [key(2)], pin=True)
    assert schedule.next(0.0) is None
    assert schedule.releases == [(0, key(0))]
    schedule.free(0, [key(0)])
    assert fetch(schedule) == key(2)[1]
    assert schedule.files[key(1)].state == "present"


def test_the_files_of_a_killed_client_are_free() -> None:
    schedule = schedule_of(2, 10)
    schedule.request(0, 0, [key(0)], pin=True)
    fetch(schedule)
    schedule.ready()
    schedule.request(1, 0, [key(1)], pin=True)
    assert schedule.next(0.0) is None
    schedule.forget(0)
    assert fetch(schedule) == key(1)[1]


def test_a_client_that_does_not_answer_is_skipped() -> None:
    schedule = full_schedule(3)
    schedule.request(2, 0, [key(2)], pin=True)
    assert schedule.next(0.0) is None
    assert schedule.next(10.0) is None  # the first client is stopped, so the second one is asked
    assert {client for client, _ in schedule.releases} == {0, 1}
    schedule.free(1, [key(1)])
    assert fetch(schedule, 10.0) == key(2)[1]


def test_on_a_full_disk_clients_are_asked_for_files_that_they_have_open() -> None:
    schedule = full_schedule(2)
    assert schedule.evict_one(0.0) == (None, True)
    assert schedule.releases == [(0, key(0))]
    assert schedule.evict_one(10.0) == (None, True)  # the first client is stopped
    assert schedule.evict_one(20.0) == (None, False)
    schedule.free(1, [key(1)])
    assert schedule.evict_one(20.0) == (schedule.files[key(1)], False)


def test_after_a_full_disk_what_a_client_waits_for_has_room() -> None:
    schedule = schedule_of(4, 30)
    for number in range(3):
        schedule.request(0, number, [key(number)], pin=False)
        fetch(schedule)
        schedule.ready()
    schedule.limit = 10  # as the stager does when the disk is full
    schedule.request(0, 9, [key(0), key(3)], pin=True)
    assert fetch(schedule) == key(3)[1]
    assert [request.number for request in schedule.ready()] == [9]
    assert schedule.held == 20


def test_a_lost_or_later_planned_file_is_downloaded() -> None:
    schedule = schedule_of(2, 20)
    plan(schedule, [(0, 0), (4, 0)])
    assert [fetch(schedule) for _ in range(2)] == [key(0)[1], None]
    schedule.lose(schedule.files[key(0)])
    assert [fetch(schedule) for _ in range(2)] == [key(0)[1], None]
    plan(schedule, [(5, 1)])
    assert [fetch(schedule) for _ in range(2)] == [key(1)[1], None]


@pytest.mark.parametrize("seed", range(20))
def test_clients_with_any_requests_always_come_to_an_end(seed: int) -> None:
    """Random clients with pins on two files at a time, in a cache that holds two such pairs, never wait for ever."""
    rng = random.Random(seed)
    schedule = schedule_of(12, limit=40)
    waiting: dict[int, list[FileKey]] = {}
    held: dict[int, list[FileKey]] = {}
    flying: list[Fetch] = []
    served = 0
    for step in range(2000):
        for client in range(4):
            if client not in waiting and client not in held:
                pair = rng.randrange(6)
                waiting[client] = [key(2 * pair), key(2 * pair + 1)]
                schedule.request(client, step, waiting[client], pin=True)
        found = schedule.next(0.0)
        flying += [] if found is None else [found]
        if flying and (found is None or rng.random() < 0.5):
            schedule.finish(flying.pop(rng.randrange(len(flying))).file, present=True)
        assert schedule.held <= 40
        for request in schedule.ready():
            held[request.client] = waiting.pop(request.client)
            served += 1
        for client, wanted in schedule.releases:
            if client in held and wanted in held[client]:
                schedule.free(client, held.pop(client))
        schedule.releases.clear()
        if not waiting:  # some client goes on to other files by itself
            client = rng.choice(sorted(held))
            schedule.free(client, held.pop(client))
    assert served > 200
