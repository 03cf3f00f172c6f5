// Signed by the vendor's own code.

import crypto from "node:crypto";

import { AT, AT_ISO, AT_MS, accepted, at, compact, json, load, require, write } from "./common.mjs";

export async function signedByVendors() {
  const Stripe = require("stripe");
  const stripe = new Stripe("sk_test_none");
  const secret = "whsec_test_secret";
  let body = compact({
    id: "evt_1Pgafv2eZvKYlo2C8pH7s9Qz", object: "event", api_version: "2026-10-28.endive", created: AT,
    type: "invoice.paid", livemode: false, data: { object: { id: "in_1", object: "invoice" } },
  });
  const one = stripe.webhooks.generateTestHeaderString({ payload: body, secret, timestamp: AT });
  const old = stripe.webhooks.generateTestHeaderString({
    payload: body, secret: "whsec_old_secret", timestamp: AT });
  const stripeEvents = [{ id: "evt_1Pgafv2eZvKYlo2C8pH7s9Qz", type: "invoice.paid" }];
  write("stripe", "event", {
    made_by: `${at("stripe")} webhooks.generateTestHeaderString`, secret,
    headers: { ...json, "stripe-signature": one }, body, events: stripeEvents,
  });
  write("stripe", "two-signatures", {
    made_by: `${at("stripe")} webhooks.generateTestHeaderString, one signature per secret`, secret,
    headers: { ...json, "stripe-signature": `${old},${one.split(",")[1]}` }, body, events: stripeEvents,
  });

  const octokit = await load("@octokit/webhooks-methods", "dist-src/index.js");
  body = compact({ action: "opened", number: 2, repository: { owner: { login: "octocat" } } });
  write("github", "event", {
    made_by: `${at("@octokit/webhooks-methods")} sign`,
    secret: "It's a Secret to Everybody",
    headers: {
      ...json,
      "x-github-event": "pull_request",
      "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
      "x-hub-signature-256": await octokit.sign("It's a Secret to Everybody", body),
    },
    body,
    events: [{ id: "72d3162e-cc78-11e3-81ab-4c9367dc0958", type: "pull_request.opened" }],
  });

  await twilio();

  const { hmacValidator: HmacValidator } = require("@adyen/api-library");
  const hmacValidator = new HmacValidator();
  const adyenKey = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056";
  const item = (changes) => {
    const made = {
      additionalData: {}, amount: { value: 1130, currency: "EUR" }, eventCode: "AUTHORISATION",
      eventDate: "2026-11-01T13:00:00+01:00", merchantAccountCode: "TestMerchant",
      merchantReference: "TestPayment-1407325143704", paymentMethod: "visa",
      pspReference: "7914073381342284", reason: "", success: "true", ...changes,
    };
    made.additionalData.hmacSignature = hmacValidator.calculateHmac(made, adyenKey);
    if (!hmacValidator.validateHMAC(made, adyenKey)) throw new Error("adyen refused its own");
    return { NotificationRequestItem: made };
  };
  const notification = (...items) => compact({ live: "false", notificationItems: items });
  const single = item({});
  if (single.NotificationRequestItem.additionalData.hmacSignature !==
      "coqCmt/IZ4E3CzPvMY8zTjQVL5hYJUiBRg8UU+iCWo0=") throw new Error("not Adyen's published signature");
  write("adyen", "event", {
    made_by: `${at("@adyen/api-library")} hmacValidator.calculateHmac; equals the signature in Adyen's documentation`,
    secret: adyenKey, headers: json, body: notification(single),
    events: [{ id: "AUTHORISATION.7914073381342284.true", type: "AUTHORISATION" }],
  });
  write("adyen", "batch", {
    made_by: `${at("@adyen/api-library")} hmacValidator.calculateHmac`,
    secret: adyenKey, headers: json,
    body: notification(single, item({
      eventCode: "CAPTURE", pspReference: "8814073381342999", originalReference: "7914073381342284",
    })),
    events: [
      { id: "AUTHORISATION.7914073381342284.true", type: "AUTHORISATION" },
      { id: "CAPTURE.8814073381342999.true", type: "CAPTURE" },
    ],
  });
  body = compact({
    data: { balancePlatform: "YOUR_BALANCE_PLATFORM", id: "BA32272223222B59CZ3T52DKZ" },
    environment: "test", type: "balancePlatform.balanceAccount.updated",
  });
  write("adyen-platform", "event", {
    made_by: `${at("@adyen/api-library")} hmacValidator.calculateHmac`,
    secret: adyenKey,
    headers: { ...json, hmacsignature: hmacValidator.calculateHmac(body, adyenKey), protocol: "HmacSHA256" },
    body,
    events: [{ id: null, type: "balancePlatform.balanceAccount.updated" }],
  });
  // The example of TokenizationNotification-v1.json of github.com/Adyen/adyen-openapi.
  body = compact({
    createdAt: AT_ISO, environment: "test", eventId: "QBQQ9DLNRHHKGK38",
    data: { merchantAccount: "YOUR_MERCHANT_ACCOUNT", shopperReference: "YOUR_SHOPPER_REFERENCE", storedPaymentMethodId: "M5N7TQ4TG5PFWR50", type: "visastandarddebit", operation: "created" },
    type: "recurring.token.created", version: "1",
  });
  write("adyen-platform", "token-created", {
    made_by: `${at("@adyen/api-library")} hmacValidator.calculateHmac`,
    secret: adyenKey,
    headers: { ...json, hmacsignature: hmacValidator.calculateHmac(body, adyenKey), protocol: "HmacSHA256" },
    body,
    events: [{ id: null, type: "recurring.token.created" }],
  });

  const { Signature } = require("@hubspot/api-client/lib/src/utils/signature.js");
  const change = (changes) => ({
    eventId: 3181526809, subscriptionId: 1160452, portalId: 62515, appId: 54772, occurredAt: AT_MS,
    subscriptionType: "contact.creation", attemptNumber: 0, objectId: 123, changeSource: "CRM", ...changes,
  });
  body = compact([change({}), change({ eventId: 3181526810, subscriptionType: "contact.deletion", objectId: 124 })]);
  const hubspotUrl = "https://gateway.example.com/webhooks/hubspot";
  const hubspotSecret = "a1b2c3d4-e5f6-4a7b-8c9d-0e1f2a3b4c5d";
  const hubspotSigned = (url, text) => ({
    ...json,
    "x-hubspot-request-timestamp": String(AT_MS),
    "x-hubspot-signature-v3": Signature.getSignature("POST", "v3", {
      clientSecret: hubspotSecret, url, requestBody: text, timestamp: AT_MS,
    }),
  });
  write("hubspot", "batch", {
    made_by: `${at("@hubspot/api-client")} Signature.getSignature v3`,
    secret: hubspotSecret, url: hubspotUrl, headers: hubspotSigned(hubspotUrl, body), body,
    events: [
      { id: `3181526809.1160452.123.${AT_MS}`, type: "contact.creation" },
      { id: `3181526810.1160452.124.${AT_MS}`, type: "contact.deletion" },
    ],
  });

  const decodedUrl = `${hubspotUrl}?at=10:30/x`;
  write("hubspot", "encoded-url", {
    made_by: `${at("@hubspot/api-client")} Signature.getSignature v3, over the URL decoded as HubSpot's page says`,
    secret: hubspotSecret, url: `${hubspotUrl}?at=10%3A30%2Fx`, headers: hubspotSigned(decodedUrl, body), body,
    events: [
      { id: `3181526809.1160452.123.${AT_MS}`, type: "contact.creation" },
      { id: `3181526810.1160452.124.${AT_MS}`, type: "contact.deletion" },
    ],
  });

  const Mux = require("@mux/mux-node").Mux;
  const mux = new Mux({ tokenId: "none", tokenSecret: "none", webhookSecret: null });
  body = compact({ type: "video.asset.ready", id: "3a56ac3d-33da-4366-855b-f592d898409d", created_at: AT_ISO });
  const muxSecret = "9i5ecn7bgqtlv3vj4vkr6m1qk1sulsi8";
  const muxSignature = await mux.webhooks.computeSignature(`${AT}.${body}`, muxSecret);
  const muxOld = await mux.webhooks.computeSignature(`${AT}.${body}`, "another");
  for (const [name, signatures] of [["event", [muxSignature]], ["two-signatures", [muxOld, muxSignature]]]) {
    const header = [`t=${AT}`, ...signatures.map((text) => `v1=${text}`)].join(",");
    await accepted(body, (text) => mux.webhooks.verifySignature(text, { "mux-signature": header }, muxSecret));
    write("mux", name, {
      made_by: `${at("@mux/mux-node")} webhooks.computeSignature and verifySignature`,
      secret: muxSecret, headers: { ...json, "mux-signature": header }, body,
      events: [{ id: "3a56ac3d-33da-4366-855b-f592d898409d", type: "video.asset.ready" }],
    });
  }

  const sanity = require("@sanity/webhook");
  body = compact({ _id: "a1b2", _type: "article", title: "Hello" });
  write("sanity", "event", {
    made_by: `${at("@sanity/webhook")} encodeSignatureHeader`,
    secret: "sanity-secret",
    headers: {
      ...json,
      "idempotency-key": "k-12", "sanity-operation": "update",
      "sanity-webhook-signature": await sanity.encodeSignatureHeader(body, AT_MS, "sanity-secret"),
    },
    body,
    events: [{ id: "k-12", type: "update" }],
  });

  const { signWebhookPayload } = require("@notionhq/client/build/src/webhooks.js");
  body = compact({
    id: "367cba44-b6f3-4c92-81e7-6a2e9659efd4", timestamp: AT_ISO, type: "page.created",
    workspace_id: "13950b26-c203-4f3b-b97d-93ec06319565", attempt_number: 1,
  });
  write("notion", "event", {
    made_by: `${at("@notionhq/client")} signWebhookPayload`,
    secret: "secret_tMrlL1qK5vuQAh1b6cZGhFChZTSYJlce98V0pYn7yBl",
    headers: {
      ...json,
      "x-notion-signature": await signWebhookPayload({
        body, verificationToken: "secret_tMrlL1qK5vuQAh1b6cZGhFChZTSYJlce98V0pYn7yBl" }),
    },
    body,
    events: [{ id: "367cba44-b6f3-4c92-81e7-6a2e9659efd4", type: "page.created" }],
  });

  const coinbase = require("coinbase-commerce-node").Webhook;
  body = compact({
    id: 1, scheduled_for: AT_ISO, attempt_number: 1,
    event: { id: "24934862-d980-46cb-9402-43c81b0cdba6", type: "charge:created", created_at: AT_ISO, data: {} },
  });
  write("coinbase-commerce", "event", {
    made_by: `${at("coinbase-commerce-node")} Webhook.computeSignature`,
    secret: "1f3bb5a7-0f3c-4f0c-8ef2-2d0e0f3c9c11",
    headers: { ...json, "x-cc-webhook-signature": coinbase.computeSignature(body, "1f3bb5a7-0f3c-4f0c-8ef2-2d0e0f3c9c11") },
    body,
    events: [{ id: "24934862-d980-46cb-9402-43c81b0cdba6", type: "charge:created" }],
  });

  const ModernTreasury = require("modern-treasury");
  const treasury = new ModernTreasury({ organizationID: "none", apiKey: "none", webhookKey: "wk_test" });
  body = compact({ event: "completed", data: { id: "c7ab1f3e-2a0b-4a2e-8f1c-0f9d8e7c6b5a", object: "payment_order" } });
  write("modern-treasury", "event", {
    made_by: `${at("modern-treasury")} webhooks.getSignature`,
    secret: "wk_test",
    headers: {
      ...json,
      "x-webhook-id": "b0c5a2de-4f0e-4a53-9a77-1a8f7a0c9a11",
      "x-signature": treasury.webhooks.getSignature(body),
    },
    body,
    events: [{ id: "b0c5a2de-4f0e-4a53-9a77-1a8f7a0c9a11", type: "payment_order.completed" }],
  });

  const { WorkOS } = require("@workos-inc/node");
  const workos = new WorkOS("sk_none");
  const parsed = { id: "event_01J1", event: "user.created", data: { id: "user_01J1" }, created_at: AT_ISO };
  body = compact(parsed);
  const workosSignature = await workos.webhooks.computeSignature(AT_MS, parsed, "workos-secret");
  write("workos", "event", {
    made_by: `${at("@workos-inc/node")} webhooks.computeSignature`,
    secret: "workos-secret",
    headers: { ...json, "workos-signature": `t=${AT_MS}, v1=${workosSignature}` },
    body,
    events: [{ id: "event_01J1", type: "user.created" }],
  });

}

async function twilio() {
  const lib = require("twilio");
  const token = "12345";
  const params = {
    CallSid: "CA1234567890ABCDE", Caller: "+14158675309", Digits: "1234", From: "+14158675309",
    To: "+18005551212",
  };
  const published = "https://mycompany.com/myapp.php?foo=1&bar=2";
  const signature = lib.getExpectedTwilioSignature(token, published, params);
  if (signature !== "RSOYDt4T1cUTdK1PDd93/VVr8B8=") throw new Error("not Twilio's published signature");
  const form = { "content-type": "application/x-www-form-urlencoded" };
  write("twilio", "published", {
    made_by: `${at("twilio")} getExpectedTwilioSignature; equals the signature in Twilio's documentation`,
    secret: token, url: published,
    headers: { ...form, "x-twilio-signature": signature }, body: new URLSearchParams(params).toString(),
    events: [{ id: signature, type: "callback" }],
  });
  const message = {
    MessageSid: "SM1234567890abcdef1234567890abcdef", MessageStatus: "delivered", SmsStatus: "delivered",
    AccountSid: "AC1234567890abcdef1234567890abcdef", From: "+14158675309", To: "+18005551212",
  };
  const url = "https://gateway.example.com/webhooks/twilio";
  const told = lib.getExpectedTwilioSignature(token, url, message);
  write("twilio", "event", {
    made_by: `${at("twilio")} getExpectedTwilioSignature`,
    secret: token, url,
    headers: {
      ...form, "i-twilio-idempotency-token": "3f2f1c1e-6d0a-4c5b-9d5a-1b2c3d4e5f60",
      "x-twilio-signature": told,
    },
    body: new URLSearchParams(message).toString(),
    events: [{ id: told, type: "callback" }],
  });
  const body = compact({ specversion: "1.0", type: "com.twilio.messaging.message.delivered", id: "EZ1" });
  const hashed = `${url}?bodySHA256=${crypto.createHash("sha256").update(body).digest("hex")}`;
  const signed = lib.getExpectedTwilioSignature(token, hashed, {});
  await accepted(body, (text) => lib.validateRequestWithBody(token, signed, hashed, text));
  write("twilio", "json", {
    made_by: `${at("twilio")} getExpectedTwilioSignature and validateRequestWithBody`,
    secret: token, url: hashed,
    headers: {
      ...json, "i-twilio-idempotency-token": "7d2f1c1e-6d0a-4c5b-9d5a-1b2c3d4e5f61",
      "x-twilio-signature": signed,
    },
    body,
    events: [{ id: signed, type: "callback" }],
  });
}
