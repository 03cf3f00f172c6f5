// Makes the vectors whose signer or verifier is published on npm. See README.md for how to run it.
//
// A case is written only if the code of somebody else signed it, or accepted it and refused the same
// request with a changed body. `made_by` says which of the two. The clock is fixed, so that a second
// run writes the same bytes.

import { payments, shops } from "./make/checked.mjs";
import { discord, sendgrid, zoom } from "./make/checked_handshakes.mjs";
import { files, messages } from "./make/checked_messages.mjs";
import { signedByVendors } from "./make/signed.mjs";
import { standardFamily, standardWebhooks } from "./make/standard_webhooks.mjs";

const ALL = [
  standardWebhooks, standardFamily, signedByVendors, shops, payments, files, messages, discord, sendgrid, zoom,
];
for (const make of ALL) await make();
