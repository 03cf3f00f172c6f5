"""Which keys are in use, and whether they are at hand."""

from collections.abc import Iterable, Mapping

from typing_extensions import TypedDict

from gateway.ledger.rekeying import MOST_COUNTED, KeyUse
from gateway.notation.quantities import format_count
from gateway.sealing import KeyRing


class KeyState(TypedDict):
    """A key of encrypted routes."""

    key_id: str
    events: int
    """Under it; of this and of what follows at most 10,001 are counted."""
    attempts: int
    effects: int
    rejected: int
    spooled: int
    """In the spool of the machine that answers."""
    encrypts: bool | None
    """Whether it is the first of `keys`; null where the process that answers has no keys."""
    at_hand: bool | None
    """Whether it is among `keys`; null where the process that answers has no keys."""


def key_states(
    uses: Iterable[KeyUse], ring: KeyRing | None, spooled: Mapping[str, int]
) -> list[KeyState]:
    """Every key that is in use or at hand, the one that encrypts first."""
    used = {use.key_id: use for use in uses}
    ours = () if ring is None else ring.ids
    others = sorted(key for key in {*used, *spooled} if key not in ours)
    return [_state(used.get(key, KeyUse(key_id=key)), ring, spooled) for key in (*ours, *others)]


def _state(use: KeyUse, ring: KeyRing | None, spooled: Mapping[str, int]) -> KeyState:
    return {
        "key_id": use.key_id,
        "events": use.events,
        "attempts": use.attempts,
        "effects": use.effects,
        "rejected": use.rejected,
        "spooled": spooled.get(use.key_id, 0),
        "encrypts": None if ring is None else ring.ids[:1] == (use.key_id,),
        "at_hand": None if ring is None else use.key_id in ring.ids,
    }


def describe_key(state: KeyState) -> str:
    """In a line: its id, what it is, and what is under it."""
    role = {True: ", which encrypts", False: "", None: ""}[state["encrypts"]]
    if state["at_hand"] is False:
        role = ", which is not among `keys`"
    counts = ("events", "event"), ("attempts", "error"), ("effects", "result")
    told = [_count(state[name], word) for name, word in counts]  # type: ignore[literal-required]
    if state["rejected"]:
        told.append(format_count(state["rejected"], "refused request"))
    spooled = f", {state['spooled']:,} in the spool" if state["spooled"] else ""
    return f"{state['key_id']}{role}: {', '.join(told)}{spooled}"


def _count(number: int, word: str) -> str:
    if number >= MOST_COUNTED:
        return f"{MOST_COUNTED - 1:,}+ {word}s"
    return format_count(number, word)


def in_use(state: KeyState) -> int:
    """How much would be unreadable without it."""
    kept = state["events"] + state["attempts"] + state["effects"] + state["rejected"]
    return kept + state["spooled"]
