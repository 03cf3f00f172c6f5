"""The spool on a real disk, before a real ledger that is away and comes back."""

import asyncio
import errno
import hashlib
import os
import shutil
import stat
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.base.errors import SpoolUnavailable, StorageUnavailable
from gateway.base.model import RepeatPolicy
from gateway.ledger.claims import Claim, Claimed, Claimer, ClaimVerdict
from gateway.receive.spool.file import MAGIC, WINDOW_ROWS, SpoolFile, SpoolRecord, encode
from gateway.receive.spool.spool import Spool, look_at
from tests.support.ledger import Reader, claim_all, make_claim
from tests.support.waiting import until

MIB = 1024 * 1024
Take = Callable[[Claim], Awaitable[Claimed]]


async def away(_: Claim) -> Claimed:
    """A ledger that never answers."""
    await asyncio.Event().wait()
    raise AssertionError


@asynccontextmanager
async def spooling(
    directory: Path, claim: Take = away, max_bytes: int = 64 * MIB
) -> AsyncIterator[Spool]:
    spool = Spool(directory, max_bytes=max_bytes, claim=claim)
    await spool.start()
    try:
        yield spool
    finally:
        await spool.stop()


@asynccontextmanager
async def draining(directory: Path, url: str) -> AsyncIterator[Spool]:
    claimer = Claimer(url, on_accepted=lambda _: None)
    await claimer.start()
    try:
        async with spooling(directory, claimer.claim) as spool:
            yield spool
    finally:
        await claimer.stop()


async def keep(directory: Path, *claims: Claim) -> None:
    """As a process would that ends before the ledger is back."""
    async with spooling(directory) as spool:
        for claim in claims:
            await spool.keep(claim)


def files(directory: Path) -> list[str]:
    return sorted(path.suffix for path in directory.iterdir())


async def test_what_was_kept_is_claimed_in_order_by_the_next_process(
    tmp_path: Path, database_url: str, ledger: Reader
) -> None:
    claims = [make_claim(f"evt_{n:03}") for n in reversed(range(150))]
    await keep(tmp_path / "spool", *claims)
    assert look_at(tmp_path / "spool").events == 150
    async with draining(tmp_path / "spool", database_url) as spool:
        await until(lambda: not spool.events and not list((tmp_path / "spool").iterdir()))
        await spool.wait_empty()
    rows = await ledger.rows(
        "select event_id, received_at, spooled from gateway.processed_events"
        " join gateway.deliveries using (route, event_id) order by due_at, id"
    )
    assert [row["event_id"] for row in rows] == [c.envelope.id for c in claims]
    assert all(row["spooled"] for row in rows)
    assert [row["received_at"] for row in rows] == [c.received_at for c in claims]


async def test_events_of_one_order_key_keep_their_order_through_the_spool(
    tmp_path: Path, database_url: str, ledger: Reader
) -> None:
    """They are more than one commit takes, and two of those are under way at once: the first with
    much to write, the second with little."""
    keys = {"handlers.count": "sub_1"}
    ids = [f"evt_{n}" for n in reversed(range(12))]  # their own order is another
    bodies = [b" " * (7 if n < 6 else 1) * MIB for n in range(12)]
    claims = [make_claim(i, order_keys=keys, body=b) for i, b in zip(ids, bodies, strict=True)]
    await keep(tmp_path, *claims)
    async with draining(tmp_path, database_url) as spool:
        await until(lambda: not spool.is_behind)
        await until(lambda: _claimed(ledger, len(ids)))
    rows = await ledger.rows("select event_id, order_key from gateway.deliveries order by id")
    assert [row["event_id"] for row in rows] == ids
    assert {row["order_key"] for row in rows} == {"sub_1"}


async def _claimed(ledger: Reader, n: int) -> bool:
    return bool(await ledger.value("select count(*) = $1 from gateway.deliveries", n))


async def test_what_is_claimed_already_is_a_duplicate_and_the_file_goes(
    tmp_path: Path, database_url: str, ledger: Reader
) -> None:
    claim = make_claim("evt_1")
    await claim_all(database_url, [claim])
    await keep(tmp_path / "spool", claim, claim)
    async with draining(tmp_path / "spool", database_url):
        await until(lambda: not list((tmp_path / "spool").iterdir()))
    assert await ledger.statuses() == {"pending": 1}


async def test_at_drain_a_refusal_of_the_replay_policy_becomes_a_flag(
    tmp_path: Path, database_url: str, ledger: Reader
) -> None:
    first = make_claim("guid_1", body=b"{}", repeats=RepeatPolicy.REFUSE)
    again = make_claim("guid_2", body=b"{}", repeats=RepeatPolicy.REFUSE)
    await claim_all(database_url, [first])
    await keep(tmp_path / "spool", again)
    async with draining(tmp_path / "spool", database_url):
        await until(lambda: not list((tmp_path / "spool").iterdir()))
    row = await ledger.row("select * from gateway.processed_events where event_id = 'guid_2'")
    assert (row["repeat_of"], row["guard"], row["spooled"]) == ("guid_1", None, True)
    assert await ledger.statuses() == {"pending": 2}
    [refused] = await claim_all(
        database_url, [make_claim("guid_3", body=b"{}", repeats=RepeatPolicy.REFUSE)]
    )
    assert refused.verdict is ClaimVerdict.REPEATED_BODY, (
        "the guard holds for those that were not spooled"
    )


async def test_a_torn_tail_is_set_aside_and_the_rest_is_claimed(
    tmp_path: Path, database_url: str, ledger: Reader
) -> None:
    directory = tmp_path / "spool"
    await keep(directory, make_claim("evt_1"), make_claim("evt_2"))
    [path] = directory.iterdir()
    torn = encode(make_claim("evt_3"))[:-7]
    with path.open("ab") as stream:
        stream.write(torn)
    async with draining(directory, database_url):
        await until(lambda: files(directory) == [".torn"])
    [piece] = directory.iterdir()
    assert piece.read_bytes() == torn
    assert look_at(directory).unreadable == (str(piece),)
    assert await ledger.value("select array_agg(event_id order by 1) from gateway.deliveries") == [
        "evt_1",
        "evt_2",
    ]


async def test_a_living_owner_keeps_its_file(tmp_path: Path, database_url: str) -> None:
    async with spooling(tmp_path / "spool") as owner:
        await owner.keep(make_claim("evt_1"))
        [path] = (tmp_path / "spool").iterdir()
        assert SpoolFile.adopt(path) is None
        async with draining(tmp_path / "spool", database_url) as other:
            assert (owner.events, other.events) == (1, 0)
    adopted = SpoolFile.adopt(path)
    assert adopted is not None
    adopted.close()


async def test_a_file_that_was_removed_while_it_was_opened_is_not_adopted(tmp_path: Path) -> None:
    await keep(tmp_path / "spool", make_claim())
    [path] = (tmp_path / "spool").iterdir()
    first = SpoolFile.adopt(path)
    assert first is not None
    path.with_suffix(".link").hardlink_to(path)
    first.remove()
    assert SpoolFile.adopt(path) is None


async def test_a_file_that_was_never_finished_is_swept_up(
    tmp_path: Path, database_url: str
) -> None:
    (tmp_path / "1.new").write_bytes(b"\0")
    async with draining(tmp_path, database_url):
        assert files(tmp_path) == []


async def test_a_full_spool_refuses_and_takes_again_once_it_is_drained(
    tmp_path: Path, database_url: str
) -> None:
    back = asyncio.Event()
    claimer = Claimer(database_url, on_accepted=lambda _: None)
    await claimer.start()

    async def later(claim: Claim) -> Claimed:
        await back.wait()
        return await claimer.claim(claim)

    async with spooling(tmp_path / "spool", later, max_bytes=3000) as spool:
        await spool.keep(make_claim(body=b"x" * 2000))
        with pytest.raises(SpoolUnavailable, match=r"full: 3KB \(GATEWAY_SPOOL_SIZE\)"):
            await spool.keep(make_claim(body=b"x" * 2000))
        assert spool.events == 1
        back.set()
        await spool.wait_empty()
        await spool.keep(make_claim(body=b"x" * 2000))
    await claimer.stop()


@pytest.mark.parametrize("call", ["write", "fsync"])
async def test_a_disk_that_fails_refuses_and_nothing_that_was_promised_is_lost(
    call: str, tmp_path: Path, database_url: str, ledger: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = getattr(os, call)

    def fail(descriptor: int, *content: memoryview) -> int:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return int(genuine(descriptor, *content) or 0)
        if content:
            genuine(descriptor, content[0][:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    async with spooling(tmp_path / "spool") as spool:
        await spool.keep(make_claim("evt_1"))
        with monkeypatch.context() as broken:
            broken.setattr(os, call, fail)
            for _ in range(3):
                with pytest.raises(SpoolUnavailable, match="No space left"):
                    await spool.keep(make_claim())
        await spool.keep(make_claim("evt_2"))
        assert spool.events == 2
    async with draining(tmp_path / "spool", database_url) as heir:
        await until(lambda: not heir.events)
        await heir.wait_empty()
    claimed = await ledger.value("select array_agg(event_id) from gateway.processed_events")
    assert {"evt_1", "evt_2"} <= set(claimed)


async def test_a_directory_that_cannot_be_made_refuses(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with spooling(tmp_path / "file" / "spool") as spool:
        with pytest.raises(SpoolUnavailable, match="Not a directory"):
            await spool.keep(make_claim())


async def test_what_the_ledger_refuses_stays_and_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.receive.spool.spool.AGAIN_S", 0.02)
    is_refusing = True
    claimed = []

    async def take(claim: Claim) -> Claimed:
        if claim.envelope.id == "evt_1" and is_refusing:
            raise StorageUnavailable("Postgres refused the event")
        claimed.append(claim.envelope.id)
        return Claimed(verdict=ClaimVerdict.ACCEPTED)

    async with spooling(tmp_path / "spool", take) as spool:
        await asyncio.gather(*(spool.keep(make_claim(f"evt_{n}")) for n in range(3)))
        await until(lambda: spool.events == 1)
        assert sorted(claimed) == ["evt_0", "evt_2"]
        assert files(tmp_path / "spool") == [".spool"]
        await spool.wait_empty()  # new events do not wait for what is refused
        is_refusing = False
        await until(lambda: not spool.events)
        assert sorted(claimed) == ["evt_0", "evt_1", "evt_2"]


async def test_refused_records_are_read_a_few_bytes_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many wait, and the last ones get their turn although the first stay refused."""
    monkeypatch.setattr("gateway.receive.spool.spool.AGAIN_S", 0.02)
    monkeypatch.setattr("gateway.receive.spool.file.WINDOW_BYTES", 1024)
    refused = {f"evt_{n}" for n in range(20)}
    read_bytes, tries, claimed = list[int](), 0, set[str]()
    genuine = SpoolFile.next_window

    def measured(file: SpoolFile) -> list[SpoolRecord]:
        window = genuine(file)
        read_bytes.append(sum(len(kept.claim.body) for kept in window))
        return window

    async def take(claim: Claim) -> Claimed:
        nonlocal tries
        tries += 1
        if claim.envelope.id in refused:
            raise StorageUnavailable("Postgres refused the event")
        claimed.add(claim.envelope.id)
        return Claimed(verdict=ClaimVerdict.ACCEPTED)

    monkeypatch.setattr(SpoolFile, "next_window", measured)
    claims = [make_claim(f"evt_{n}", body=b"x" * 2000) for n in range(20)]
    await keep(tmp_path / "spool", *claims)
    async with spooling(tmp_path / "spool", take) as spool:
        await until(lambda: tries > 60)
        assert spool.events == 20
        refused -= {"evt_18", "evt_19"}
        await until(lambda: claimed == {"evt_18", "evt_19"})
        refused.clear()
        await until(lambda: not spool.events)
    assert max(read_bytes) <= 2 * 2000, "one record that was refused, and one new one"


async def test_many_refused_records_do_not_hold_up_the_records_behind_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.receive.spool.spool.AGAIN_S", 0.02)
    refused, claimed = {f"evt_{n}" for n in range(3 * WINDOW_ROWS)}, set[str]()

    async def take(claim: Claim) -> Claimed:
        if claim.envelope.id in refused:
            raise StorageUnavailable("Postgres refused the event")
        claimed.add(claim.envelope.id)
        return Claimed(verdict=ClaimVerdict.ACCEPTED)

    claims = [make_claim(f"evt_{n}") for n in range(3 * WINDOW_ROWS + 1)]
    await keep(tmp_path / "spool", *claims)
    async with spooling(tmp_path / "spool", take) as spool:
        await until(lambda: claimed == {claims[-1].envelope.id})
        assert spool.events == len(refused)
        refused.clear()
        await until(lambda: not spool.events)


async def test_writing_and_draining_at_once_loses_nothing(
    tmp_path: Path, database_url: str, ledger: Reader
) -> None:
    """The file is removed whenever it was drained to its end, while others append to it."""
    async with draining(tmp_path / "spool", database_url) as spool:

        async def sender(name: int) -> None:
            for n in range(60):
                await spool.keep(make_claim(f"evt_{name}_{n}"))
                await asyncio.sleep(0.001 * (n % 7))

        await asyncio.gather(*map(sender, range(8)))
        await spool.wait_empty()
        assert spool.events == 0
    assert await ledger.value("select count(*) from gateway.processed_events") == 480


async def test_files_and_directory_are_private(tmp_path: Path) -> None:
    await keep(tmp_path / "data" / "spool", make_claim())
    [path] = (tmp_path / "data" / "spool").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


class PowerCut:
    """What a disk would hold if the power went now: contents and names that were fsynced."""

    def __init__(self, disk: Path, root: Path) -> None:
        self._disk, self._root = disk, root
        self._fsync = os.fsync
        self._contents: dict[int, bytes] = {}

    def fsync(self, descriptor: int) -> None:
        self._fsync(descriptor)
        place = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if place.is_dir():
            self._sync_names(place)
        else:
            self._contents[place.stat().st_ino] = place.read_bytes()
            mirrored = self._disk / place.relative_to(self._root)
            if mirrored.exists():
                mirrored.write_bytes(place.read_bytes())

    def _sync_names(self, directory: Path) -> None:
        if directory != self._root and not directory.is_relative_to(self._root):
            return
        mirror = self._disk / directory.relative_to(self._root)
        if not mirror.exists():
            return  # its own name was never made durable
        for entry in directory.iterdir():
            target = mirror / entry.name
            if entry.is_dir():
                target.mkdir(exist_ok=True)
            elif not target.exists():
                target.write_bytes(self._contents.get(entry.stat().st_ino, b""))
        for target in mirror.iterdir():
            if not (directory / target.name).exists():
                shutil.rmtree(target) if target.is_dir() else target.unlink()


async def test_what_was_acknowledged_survives_a_power_cut_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, disk = tmp_path / "root", tmp_path / "disk"
    root.mkdir()
    disk.mkdir()
    cut = PowerCut(disk, root)
    monkeypatch.setattr(os, "fsync", cut.fsync)
    async with spooling(root / "data" / "spool") as spool:
        for n in range(5):
            await spool.keep(make_claim(f"evt_{n}"))
            assert look_at(disk / "data" / "spool").events == n + 1


async def test_an_error_that_nobody_foresaw_ends_the_spool_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with spooling(tmp_path / "spool") as spool:
        monkeypatch.setattr(spool, "_next_batch", lambda: 1 / 0)
        lost = asyncio.create_task(spool.keep(make_claim()))
        await until(lambda: not spool.working)
        with pytest.raises(SpoolUnavailable, match="has ended"):
            await spool.keep(make_claim())
        lost.cancel()


async def test_a_claim_that_cannot_be_written_fails_alone(tmp_path: Path) -> None:
    async with spooling(tmp_path / "spool") as spool:
        with pytest.raises(SpoolUnavailable):
            await spool.keep(make_claim()._replace(headers={"x": object()}))  # type: ignore[dict-item]
        await spool.keep(make_claim())
        assert spool.events == 1


async def test_an_event_that_comes_while_files_are_removed_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files are finished at once: while the first is removed, the second is written."""
    directory = tmp_path / "spool"
    await keep(directory, make_claim("evt_adopted"))
    is_refusing = True
    remove = SpoolFile.remove
    removing, may_remove = threading.Event(), threading.Event()
    monkeypatch.setattr("gateway.receive.spool.spool.AGAIN_S", 0.02)

    def slowly(file: SpoolFile) -> None:
        removing.set()
        may_remove.wait()
        remove(file)

    monkeypatch.setattr(SpoolFile, "remove", slowly)
    claimed: set[str] = set()

    async def take(claim: Claim) -> Claimed:
        if is_refusing:
            raise StorageUnavailable("read only")
        claimed.add(claim.envelope.id)
        return Claimed(verdict=ClaimVerdict.ACCEPTED)

    async with spooling(directory, take) as spool:
        await spool.keep(make_claim("evt_own"))
        is_refusing = False
        await until(removing.is_set)
        assert claimed == {"evt_adopted", "evt_own"}
        late = asyncio.create_task(spool.keep(make_claim("evt_late")))
        await until(lambda: spool._appending is not None)
        may_remove.set()
        await late
        await until(lambda: "evt_late" in claimed)
        await until(lambda: not spool.events)


async def test_a_stop_while_a_file_is_about_to_be_removed_closes_it(tmp_path: Path) -> None:
    directory = tmp_path / "spool"
    asked = asyncio.Event()

    async def take(claim: Claim) -> Claimed:
        def wait_for_stop() -> None:  # the disk is busy, so that the removal has to wait
            while not all(task.done() for task in spool._tasks):
                time.sleep(0.01)

        spool._disk.submit(wait_for_stop)
        asked.set()
        return Claimed(verdict=ClaimVerdict.ACCEPTED)

    async with spooling(directory, take) as spool:
        await spool.keep(make_claim("evt_1"))
        [file] = spool._files
        await asked.wait()
        await until(lambda: file.is_sealed)
    assert file._stream.closed
    assert files(directory) == [".spool"], "the next process claims it again: a duplicate"


async def test_a_full_disk_leaves_no_files_and_no_descriptors_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int, __: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with spooling(tmp_path / "spool") as spool:
        await spool.keep(make_claim("evt_1"))
        before = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as broken:
            broken.setattr(os, "write", full)
            for _ in range(30):
                with pytest.raises(SpoolUnavailable):
                    await spool.keep(make_claim())
        assert len(os.listdir("/proc/self/fd")) <= before
        assert files(tmp_path / "spool") == [".spool"]


async def test_a_file_that_cannot_be_adopted_does_not_keep_back_the_others(
    tmp_path: Path, database_url: str, ledger: Reader
) -> None:
    directory = tmp_path / "spool"
    await keep(directory, make_claim("evt_1"))
    (directory / "0.spool").symlink_to("/nowhere")
    (directory / "1.spool").mkdir()
    os.mkfifo(directory / "2.spool")
    await keep(directory / "other", make_claim("evt_2"))
    [written] = (directory / "other").iterdir()
    record = written.read_bytes()
    monkey = record.replace(b'"provider"', b'"prov1der"')
    assert monkey != record
    (directory / "3.spool").write_bytes(_with_checksum(monkey))
    async with draining(directory, database_url) as spool:
        await until(lambda: not spool.events)
    assert await ledger.value("select array_agg(event_id) from gateway.processed_events") == [
        "evt_1"
    ]
    assert (directory / "3.spool").exists(), "what another version wrote is kept for it"
    assert str(directory / "3.spool") in look_at(directory).unreadable


def _with_checksum(record: bytes) -> bytes:
    start = len(MAGIC)
    lengths, rest = record[start : start + 8], record[start + 24 :]
    checksum = hashlib.blake2b(lengths + rest, digest_size=16).digest()
    return MAGIC + lengths + checksum + rest


async def test_damage_in_its_own_file_is_set_aside_too(tmp_path: Path) -> None:
    directory, claimed = tmp_path / "spool", list[str]()
    asked, back = asyncio.Event(), asyncio.Event()

    async def later(claim: Claim) -> Claimed:
        asked.set()
        await back.wait()
        claimed.append(claim.envelope.id)
        return Claimed(verdict=ClaimVerdict.ACCEPTED)

    async with spooling(directory, later) as spool:
        await spool.keep(make_claim("evt_1"))
        await asked.wait()  # the first is on its way to the ledger
        await spool.keep(make_claim("evt_2"))
        [path] = directory.iterdir()
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(bytes(content))
        back.set()
        await until(lambda: files(directory) == [".torn"])
    assert claimed == ["evt_1"]


async def test_a_disk_that_cannot_be_read_for_a_moment_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.receive.spool.spool.AGAIN_S", 0.02)
    genuine, failures, claimed = SpoolFile.next_window, [1, 2, 3], list[str]()

    def flaky(file: SpoolFile) -> list[SpoolRecord]:
        if failures and failures.pop():
            raise OSError(errno.EIO, "Input/output error")
        return genuine(file)

    async def take(claim: Claim) -> Claimed:
        claimed.append(claim.envelope.id)
        return Claimed(verdict=ClaimVerdict.ACCEPTED)

    monkeypatch.setattr(SpoolFile, "next_window", flaky)
    async with spooling(tmp_path / "spool", take) as spool:
        await spool.keep(make_claim("evt_1"))
        await until(lambda: not spool.events)
    assert claimed == ["evt_1"]
