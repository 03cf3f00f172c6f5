"""What encryption adds to a claim and to a run, in CPU time: `python -m bench.sealing`."""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime

from gateway.base.model import Envelope
from gateway.base.secrets import Secret
from gateway.ledger.claims import Claim
from gateway.ledger.encryption import EncryptionKeys, open_event
from gateway.privacy.encryption import KeyRing

SIZES = (3_400, 64 * 1024, 1024 * 1024, 25 * 1024 * 1024)
MEASURED_S = 0.5


def main() -> None:
    encryption = EncryptionKeys(
        ring=KeyRing([Secret(os.urandom(32))]), routes=frozenset({"stripe"})
    )
    for size in SIZES:
        claim = _claim(os.urandom(size))
        sealed = encryption.seal_claim(claim)
        seal_us = _us(lambda claim=claim: encryption.seal_claim(claim))  # type: ignore[misc]
        open_us = _us(
            lambda sealed=sealed: open_event(  # type: ignore[misc]
                encryption.ring, sealed.route, sealed.envelope.id, sealed.body
            )
        )
        print(f"{size:>10,} bytes: seal a claim {seal_us:,.1f} us, open an event {open_us:,.1f} us")
    other = _claim(b"{}")._replace(route="github")
    plain_us = _us(lambda: encryption.seal_claim(other))
    print(f"a route without encrypt, asked all the same: {plain_us:.2f} us")


def _claim(body: bytes) -> Claim:
    return Claim(
        route="stripe",
        provider="stripe",
        envelope=Envelope(id="evt_1PabcDEFghiJKLmno", type="invoice.paid"),
        received_at=datetime.now(UTC),
        digest=os.urandom(32),
        headers={f"x-header-{n}": "some value of a header" for n in range(12)},
        body=body,
        repeats=None,
        handlers=("handlers.billing.paid",),
        order_keys={"handlers.billing.paid": "cus_1PabcDEFghiJKLmno"},
    )


def _us(work: Callable[[], object]) -> float:
    count, began = 0, time.process_time()
    while (took := time.process_time() - began) < MEASURED_S:
        work()
        count += 1
    return took / count * 1e6


if __name__ == "__main__":
    main()
