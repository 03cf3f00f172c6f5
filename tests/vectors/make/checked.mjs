// Signed with node:crypto, and accepted by the vendor's own verifier: shops and payments.

import crypto from "node:crypto";

import { AT, AT_ISO, AT_MS, accepted, at, compact, ed25519, hmac, json, load, require, write } from "./common.mjs";

export const by = (verifier) => `signed with node:crypto, accepted by ${verifier}`;

export async function shops() {
  let body, header, headers, secret;

  secret = "hush";
  const { shopifyApi, ApiVersion } = require("@shopify/shopify-api");
  require("@shopify/shopify-api/adapters/node");
  const shop = shopifyApi({
    apiKey: "none", apiSecretKey: secret, hostName: "gateway.example.com", isEmbeddedApp: false,
    apiVersion: Object.values(ApiVersion).at(-2), logger: { level: 0 },
  });
  body = compact({ id: 820982911946154508, email: "jon@example.com", total_price: "403.00" });
  headers = {
    ...json,
    "x-shopify-topic": "orders/create", "x-shopify-shop-domain": "example.myshopify.com",
    "x-shopify-api-version": "2026-10", "x-shopify-webhook-id": "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043",
    "x-shopify-event-id": "98880550-7158-44d4-b7cd-2c97c8a091b5", "x-shopify-triggered-at": AT_ISO,
    "x-shopify-hmac-sha256": hmac(secret, body, "base64"),
  };
  await accepted(body, async (text) => (await shop.webhooks.validate({
    rawBody: text, rawRequest: { method: "POST", url: "/", headers }, rawResponse: {} })).valid);
  write("shopify", "event", {
    made_by: by(`${at("@shopify/shopify-api")} webhooks.validate`), secret, headers, body,
    events: [{ id: "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043", type: "orders/create" }],
  });
  // A body with nothing but an id, which is the same each time.
  body = compact({ id: 1234567890 });
  headers = {
    ...headers, "x-shopify-topic": "profiles/update", "x-shopify-webhook-id": "d1a2f0a4-6f6c-4d5a-9d0e-0f4f0a6f6f10",
    "x-shopify-hmac-sha256": hmac(secret, body, "base64"),
  };
  await accepted(body, async (text) => (await shop.webhooks.validate({
    rawBody: text, rawRequest: { method: "POST", url: "/", headers }, rawResponse: {} })).valid);
  write("shopify", "only-an-id", {
    made_by: by(`${at("@shopify/shopify-api")} webhooks.validate`), secret, headers, body,
    events: [{ id: "d1a2f0a4-6f6c-4d5a-9d0e-0f4f0a6f6f10", type: "profiles/update" }],
  });

  const { LinearWebhookClient } = await load("@linear/sdk", "dist/webhooks/index.mjs");
  secret = "lin_wh_aBcDeFgHiJkLmNoP";
  body = compact({
    action: "create", type: "Issue", createdAt: AT_ISO, data: { id: "2174add1-f7c8-44e3-bbf3-2d60b5ea8bc9" },
    organizationId: "0eb60ed8-5d39-4b2c-a3c9-6b4d4e7a2e3f", webhookTimestamp: AT_MS,
  });
  header = hmac(secret, body, "hex");
  const linear = new LinearWebhookClient(secret);
  await accepted(body, (text) => linear.verify(Buffer.from(text), header));
  write("linear", "event", {
    made_by: by(`${at("@linear/sdk")} LinearWebhookClient.verify`), secret, body,
    headers: { ...json, "linear-delivery": "234d1a4e-b617-4388-90fe-adc3633d6b72", "linear-event": "Issue", "linear-signature": header },
    events: [{ id: null, type: "Issue.create" }],
  });

  const { WebhooksHelper } = require("square");
  secret = "asdf1234";
  const url = "https://gateway.example.com/webhooks/square";
  body = compact({
    merchant_id: "6SSW7HV8K2ST5", type: "payment.created", event_id: "13b867cf-db3d-4b1c-90b6-2f32a9d78124",
    created_at: AT_ISO, data: { type: "payment", id: "KkAkhdMsgzn59SM8A89WgKwekxLZY" },
  });
  header = hmac(secret, url + body, "base64");
  await accepted(body, (text) => WebhooksHelper.verifySignature({
    requestBody: text, signatureHeader: header, signatureKey: secret, notificationUrl: url }));
  write("square", "event", {
    made_by: by(`${at("square")} WebhooksHelper.verifySignature`), secret, url, body,
    headers: { ...json, "x-square-hmacsha256-signature": header },
    events: [{ id: "13b867cf-db3d-4b1c-90b6-2f32a9d78124", type: "payment.created" }],
  });

  const { Paddle } = require("@paddle/paddle-node-sdk");
  const paddle = new Paddle("none");
  secret = "pdl_ntfset_01gkdqv9d0xd6b6r6n0z2kv4hm_Y2hhbmdlbWU";
  body = compact({
    event_id: "evt_01gkdqv9d0xd6b6r6n0z2kv4hm", event_type: "product.updated", occurred_at: AT_ISO,
    notification_id: "ntf_01gkdqv9d0xd6b6r6n0z2kv4hn", data: { id: "pro_01", name: "Plan" },
  });
  const h1 = hmac(secret, `${AT}:${body}`, "hex");
  const h1Old = hmac("another", `${AT}:${body}`, "hex");
  for (const [name, value] of [["event", `ts=${AT};h1=${h1}`], ["two-signatures", `ts=${AT};h1=${h1Old};h1=${h1}`]]) {
    await accepted(body, (text) => paddle.webhooks.isSignatureValid(text, secret, value));
    write("paddle", name, {
      made_by: by(`${at("@paddle/paddle-node-sdk")} webhooks.isSignatureValid`), secret, body,
      headers: { ...json, "paddle-signature": value },
      events: [{ id: "evt_01gkdqv9d0xd6b6r6n0z2kv4hm", type: "product.updated" }],
    });
  }
}

export async function payments() {
  let body, header, headers, secret;

  const Razorpay = require("razorpay");
  secret = "razorpay-secret";
  body = compact({ entity: "event", account_id: "acc_BFQ7uQEaa7j2z7", event: "payment.captured", created_at: AT });
  header = hmac(secret, body, "hex");
  await accepted(body, (text) => Razorpay.validateWebhookSignature(text, header, secret));
  write("razorpay", "event", {
    made_by: by(`${at("razorpay")} validateWebhookSignature`), secret, body,
    headers: { ...json, "x-razorpay-event-id": "evt_LJ0aTq1JvVYQ7y", "x-razorpay-signature": header },
    events: [{ id: "evt_LJ0aTq1JvVYQ7y", type: "payment.captured" }],
  });

  const gocardless = require("gocardless-nodejs/webhooks");
  secret = "gocardless-secret";
  const happened = (id, resource_type, action) => ({
    id, created_at: AT_ISO, resource_type, action, links: { mandate: "MD1" } });
  body = compact({
    events: [happened("EV00BD05S5VM2T", "subscriptions", "created"), happened("EV00BD05TB8K63", "mandates", "created")],
    meta: { webhook_id: "WB000123" },
  });
  header = hmac(secret, body, "hex");
  await accepted(body, (text) => gocardless.parse(text, secret, header));
  write("gocardless", "batch", {
    made_by: by(`${at("gocardless-nodejs")} webhooks.parse`), secret, body,
    headers: { ...json, "webhook-signature": header },
    events: [{ id: "EV00BD05S5VM2T", type: "subscriptions.created" }, { id: "EV00BD05TB8K63", type: "mandates.created" }],
  });

  const line = await load("@line/bot-sdk", "dist/validate-signature.js");
  secret = "8c570fa6dd201bb328f1c1eac23a96d8";
  const said = (type, webhookEventId) => ({ type, mode: "active", timestamp: AT_MS, webhookEventId, deliveryContext: { isRedelivery: false } });
  body = compact({
    destination: "U8e742f61d673b39c7fff3cecb7536ef0",
    events: [said("message", "01FZ74A0TDDPYRVKNK77XKC3ZR"), said("follow", "01FZ74ASS536FW97EX38NKCZQK")],
  });
  header = hmac(secret, body, "base64");
  await accepted(body, (text) => line.default(text, secret, header));
  write("line", "batch", {
    made_by: by(`${at("@line/bot-sdk")} validateSignature`), secret, body,
    headers: { ...json, "x-line-signature": header },
    events: [{ id: "01FZ74A0TDDPYRVKNK77XKC3ZR", type: "message" }, { id: "01FZ74ASS536FW97EX38NKCZQK", type: "follow" }],
  });
  body = compact({ destination: "U8e742f61d673b39c7fff3cecb7536ef0", events: [] });
  header = hmac(secret, body, "base64");
  await accepted(body, (text) => line.default(text, secret, header));
  write("line", "verify-button", {
    made_by: by(`${at("@line/bot-sdk")} validateSignature`), secret, body,
    headers: { ...json, "x-line-signature": header }, events: [], answer: { status: 200 },
  });

  const { WebhookEventVerifier } = require("@onfido/api");
  secret = "onfido-token";
  body = compact({ payload: { resource_type: "check", action: "check.completed", object: { id: "a1", status: "complete", completed_at_iso8601: AT_ISO } } });
  header = hmac(secret, body, "hex");
  await accepted(body, (text) => new WebhookEventVerifier(secret).readPayload(text, header));
  write("onfido", "event", {
    made_by: by(`${at("@onfido/api")} WebhookEventVerifier.readPayload`), secret, body,
    headers: { ...json, "x-sha2-signature": header },
    events: [{ id: null, type: "check.completed" }],
  });

  const EasyPost = require("@easypost/api");
  secret = "easypost-secret";
  body = compact({ id: "evt_1", object: "Event", description: "tracker.updated", status: "pending", result: { id: "trk_1" } });
  const easypost = new (EasyPost.default ?? EasyPost)("none");
  headers = { ...json, "x-hmac-signature": `hmac-sha256-hex=${hmac(secret, body, "hex")}` };
  await accepted(body, (text) => easypost.Utils.validateWebhook(Buffer.from(text), headers, secret));
  write("easypost", "event", {
    made_by: by(`${at("@easypost/api")} Utils.validateWebhook`), secret, headers, body,
    events: [{ id: "evt_1", type: "tracker.updated" }],
  });

  const { TelnyxWebhook } = require("telnyx/lib/webhooks.js");
  const pair = ed25519(1);
  body = compact({ data: { event_type: "message.received", id: "b301ed3f-1490-491f-995f-6e64e69674d4", occurred_at: AT_ISO, record_type: "event" } });
  headers = {
    ...json, "telnyx-timestamp": String(AT),
    "telnyx-signature-ed25519": crypto.sign(null, Buffer.from(`${AT}|${body}`), pair.privateKey).toString("base64"),
  };
  await accepted(body, (text) => new TelnyxWebhook(pair.raw.toString("base64")).verify(text, headers));
  write("telnyx", "event", {
    made_by: by(`${at("telnyx")} TelnyxWebhook.verify`), secret: pair.raw.toString("base64"), private_key: pair.der.toString("base64"), headers, body,
    events: [{ id: "b301ed3f-1490-491f-995f-6e64e69674d4", type: "message.received" }],
  });
}
