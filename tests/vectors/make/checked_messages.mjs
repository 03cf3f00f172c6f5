// The same: files, events and messages.

import { by } from "./checked.mjs";
import { AT, AT_ISO, AT_MS, accepted, at, compact, hmac, json, require, write } from "./common.mjs";

export async function files() {
  let body, headers, secret;

  const { WebhooksManager } = require("box-node-sdk/lib/managers/webhooks");
  const [primary, secondary] = ["SamplePrimaryKey", "SampleSecondaryKey"];
  body = compact({ type: "webhook_event", id: "eb0c4e06-751f-442c-86f8-fd5bb404dbec", created_at: AT_ISO, trigger: "FILE.UPLOADED" });
  headers = {
    ...json,
    "box-delivery-id": "f96bb54b-ee16-4fc5-aa65-8c2d9e5b546f", "box-delivery-timestamp": "2026-11-01T05:00:00-07:00",
    "box-signature-algorithm": "HmacSHA256", "box-signature-version": "1",
  };
  headers["box-signature-primary"] = hmac(primary, body + headers["box-delivery-timestamp"], "base64");
  headers["box-signature-secondary"] = hmac(secondary, body + headers["box-delivery-timestamp"], "base64");
  for (const [name, key] of [["event", primary], ["secondary-key", secondary]]) {
    await accepted(body, (text) => WebhooksManager.validateMessage(text, headers, "none", { secondaryKey: secondary }));
    await accepted(body, (text) => WebhooksManager.validateMessage(text, headers, primary));
    write("box", name, {
      made_by: by(`${at("box-node-sdk")} WebhooksManager.validateMessage`), secret: key, headers, body,
      events: [{ id: "eb0c4e06-751f-442c-86f8-fd5bb404dbec", type: "FILE.UPLOADED" }],
    });
  }

  const Pusher = require("pusher");
  const pusher = new Pusher({ appId: "1", key: "aaaa", secret: "tofu", cluster: "mt1" });
  secret = "tofu";
  body = compact({ time_ms: AT_MS, events: [{ name: "channel_occupied", channel: "p1" }] });
  headers = { ...json, "x-pusher-key": "aaaa", "x-pusher-signature": hmac(secret, body, "hex") };
  await accepted(body, (text) => pusher.webhook({ headers, rawBody: text }).isValid());
  write("pusher", "event", {
    made_by: by(`${at("pusher")} WebHook.isValid`), secret, headers, body,
    events: [{ id: null, type: "webhook" }],
  });

  const { StreamChat } = require("stream-chat");
  secret = "stream-secret";
  const stream = new StreamChat("key", secret);
  body = compact({ type: "message.new", created_at: AT_ISO, channel_id: "general", message: { id: "m1" } });
  headers = { ...json, "x-api-key": "key", "x-signature": hmac(secret, body, "hex") };
  await accepted(body, (text) => stream.verifyWebhook(text, headers["x-signature"]));
  write("stream", "event", {
    made_by: by(`${at("stream-chat")} verifyWebhook`), secret, headers, body,
    events: [{ id: null, type: "message.new" }],
  });

  const { Cashfree, CFEnvironment } = require("cashfree-pg");
  secret = "cashfree-secret";
  const cashfree = new Cashfree(CFEnvironment.SANDBOX, "id", secret);
  body = compact({ data: { order: { order_id: "order_1" } }, event_time: "2026-11-01T17:30:00+05:30", type: "PAYMENT_SUCCESS_WEBHOOK" });
  headers = {
    ...json, "x-webhook-timestamp": String(AT_MS),
    "x-webhook-signature": hmac(secret, AT_MS + body, "base64"),
  };
  await accepted(body, (text) => cashfree.PGVerifyWebhookSignature(headers["x-webhook-signature"], text, headers["x-webhook-timestamp"]));
  write("cashfree", "event", {
    made_by: by(`${at("cashfree-pg")} PGVerifyWebhookSignature`), secret, headers, body,
    events: [{ id: null, type: "PAYMENT_SUCCESS_WEBHOOK" }],
  });
}

export async function messages() {
  let body, header, headers, secret;

  const { WebflowClient } = require("webflow-api");
  secret = "webflow-secret";
  const webflow = new WebflowClient({ accessToken: "none" });
  body = compact({ triggerType: "form_submission", payload: { name: "Contact", id: "6321ca84df3949bfc6752327", submittedAt: AT_ISO } });
  headers = { ...json, "x-webflow-timestamp": String(AT_MS), "x-webflow-signature": hmac(secret, `${AT_MS}:${body}`, "hex") };
  await accepted(body, (text) => webflow.webhooks.verifySignature({ headers, body: text, secret }));
  write("webflow", "event", {
    made_by: by(`${at("webflow-api")} webhooks.verifySignature`), secret, headers, body,
    events: [{ id: `form_submission.6321ca84df3949bfc6752327.${AT_MS}`, type: "form_submission" }],
  });
  // Without a time: stock that goes from 5 to 4 and back to 5 has the same body.
  body = compact({ triggerType: "ecomm_inventory_changed", payload: { id: "5bfedb42bab0ad90fa7dad03", quantity: 5, inventoryType: "finite" } });
  headers = { ...headers, "x-webflow-signature": hmac(secret, `${AT_MS}:${body}`, "hex") };
  await accepted(body, (text) => webflow.webhooks.verifySignature({ headers, body: text, secret }));
  write("webflow", "inventory", {
    made_by: by(`${at("webflow-api")} webhooks.verifySignature`), secret, headers, body,
    events: [{ id: `ecomm_inventory_changed.5bfedb42bab0ad90fa7dad03.${AT_MS}`, type: "ecomm_inventory_changed" }],
  });

  const MessageValidator = require("viber-bot/lib/message/message-validator.js");
  secret = "445da6az1s345z78-dazcczb2542zv51a-e0vc5fva17480im9";
  body = compact({ event: "message", timestamp: AT_MS, message_token: 4912661846655238145, sender: { id: "01234567890A=" } });
  header = hmac(secret, body, "hex");
  const viber = new MessageValidator({ debug() {} }, secret);
  await accepted(body, (text) => viber.validateMessage(header, text));
  write("viber", "event", {
    made_by: by(`${at("viber-bot")} MessageValidator.validateMessage`), secret, body,
    headers: { ...json, "x-viber-content-signature": header },
    events: [{ id: null, type: "message" }],
  });
  // lib/middleware.js of viber-bot takes the signature from the URL. This is what set_webhook sends.
  body = compact({ event: "webhook", timestamp: AT_MS, chat_hostname: "SN-CHAT-05_", message_token: 241256543215 });
  header = hmac(secret, body, "hex");
  await accepted(body, (text) => viber.validateMessage(header, text));
  write("viber", "webhook-set", {
    made_by: by(`${at("viber-bot")} MessageValidator.validateMessage`), secret, body,
    url: `https://gateway.example.com/webhooks/viber?sig=${header}`,
    headers: json,
    events: [{ id: null, type: "webhook" }],
  });

  const { ElevenLabsClient } = require("@elevenlabs/elevenlabs-js");
  secret = "wsec_elevenlabs";
  const eleven = new ElevenLabsClient({ apiKey: "none" });
  body = compact({ type: "post_call_transcription", event_timestamp: AT, data: { conversation_id: "abc" } });
  header = `t=${AT},v0=${hmac(secret, `${AT}.${body}`, "hex")}`;
  await accepted(body, (text) => eleven.webhooks.constructEvent(text, header, secret));
  write("elevenlabs", "event", {
    made_by: by(`${at("@elevenlabs/elevenlabs-js")} webhooks.constructEvent`), secret, body,
    headers: { ...json, "elevenlabs-signature": header },
    events: [{ id: null, type: "post_call_transcription" }],
  });
  // A whole conversation as base64; this one is short.
  body = compact({
    type: "post_call_audio", event_timestamp: AT,
    data: { agent_id: "agent_1", conversation_id: "abc", full_audio: "SUQzBAAAAAAAI1RTU0UAAAAP" },
  });
  const audio = `t=${AT},v0=${hmac(secret, `${AT}.${body}`, "hex")}`;
  await accepted(body, (text) => eleven.webhooks.constructEvent(text, audio, secret));
  write("elevenlabs", "audio", {
    made_by: by(`${at("@elevenlabs/elevenlabs-js")} webhooks.constructEvent`), secret, body,
    headers: { ...json, "elevenlabs-signature": audio },
    events: [{ id: null, type: "post_call_audio" }],
  });

  const { MailerSendUtils } = require("mailersend/lib/services/mailersend.utils.js");
  secret = "mailersend-secret";
  body = compact({ type: "activity.sent", domain_id: "d1", created_at: AT_ISO, webhook_id: "w1", data: { object: "activity", id: "62f114f8165fe0d8db0288e3" } });
  header = hmac(secret, body, "hex");
  await accepted(body, (text) => MailerSendUtils.verifyWebHook(text, header, secret));
  write("mailersend", "event", {
    made_by: by(`${at("mailersend")} MailerSendUtils.verifyWebHook`), secret, body,
    headers: { ...json, signature: header },
    events: [{ id: "activity.sent.62f114f8165fe0d8db0288e3", type: "activity.sent" }],
  });

  const hookdeck = require("@hookdeck/sdk/webhooks/helpers");
  secret = "hookdeck-secret";
  body = compact({ type: "order.created", id: "o1" });
  headers = { ...json, "x-hookdeck-eventid": "evt_0QxKBvDGUPVJ7P", "x-hookdeck-signature": hmac(secret, body, "base64") };
  await accepted(body, async (text) => (await hookdeck.verifyWebhookSignature({ headers, rawBody: text, signingSecret: secret })).isValidSignature);
  const rolled = { ...headers, "x-hookdeck-signature": hmac("another", body, "base64"), "x-hookdeck-signature-2": headers["x-hookdeck-signature"] };
  await accepted(body, async (text) => (await hookdeck.verifyWebhookSignature({ headers: rolled, rawBody: text, signingSecret: secret })).isValidSignature);
  for (const [name, sent] of [["event", headers], ["two-signatures", rolled]])
    write("hookdeck", name, {
      made_by: by(`${at("@hookdeck/sdk")} verifyWebhookSignature`), secret, headers: sent, body,
      events: [{ id: "evt_0QxKBvDGUPVJ7P", type: "webhook" }],
    });

  const { WebhookSignatureValidator } = require("mercadopago/dist/utils/webhook");
  secret = "mercadopago-secret";
  body = compact({ id: 12345, live_mode: true, type: "payment", date_created: AT_ISO, user_id: 44444, api_version: "v1", action: "payment.created", data: { id: "999999999" } });
  const requestId = "bb56a2f1-6aae-46ac-982e-9dcd3581d08e";
  header = `ts=${AT},v1=${hmac(secret, `id:999999999;request-id:${requestId};ts:${AT};`, "hex")}`;
  WebhookSignatureValidator.validate({ xSignature: header, xRequestId: requestId, dataId: "999999999", secret });
  write("mercado-pago", "event", {
    made_by: by(`${at("mercadopago")} WebhookSignatureValidator.validate`), secret, body,
    url: "https://gateway.example.com/webhooks/mercado-pago?data.id=999999999&type=payment",
    headers: { ...json, "x-request-id": requestId, "x-signature": header },
    events: [{ id: "12345", type: "payment.created" }],
  });
  // A pair whose value is missing is left out of what is signed.
  body = compact({ live_mode: true, type: "order", user_id: 44444, action: "order.processed", data: { id: "ORD01J49MMW3SSBK5PSV3DFR32959" } });
  header = `ts=${AT_MS},v1=${hmac(secret, `request-id:${requestId};ts:${AT_MS};`, "hex")}`;
  WebhookSignatureValidator.validate({ xSignature: header, xRequestId: requestId, secret });
  write("mercado-pago", "without-data-id", {
    made_by: by(`${at("mercadopago")} WebhookSignatureValidator.validate`), secret, body,
    headers: { ...json, "x-request-id": requestId, "x-signature": header },
    events: [{ id: requestId, type: "order.processed" }],
  });
  header = `ts=${AT_MS},v1=${hmac(secret, `id:123;ts:${AT_MS};`, "hex")}`;
  WebhookSignatureValidator.validate({ xSignature: header, dataId: "123", secret });
  write("mercado-pago", "without-request-id", {
    made_by: by(`${at("mercadopago")} WebhookSignatureValidator.validate`), secret,
    body: compact({ id: 12346, type: "payment", action: "payment.updated", data: { id: "123" } }),
    url: "https://gateway.example.com/webhooks/mercado-pago?data.id=123&type=payment",
    headers: { ...json, "x-signature": header },
    events: [{ id: "12346", type: "payment.updated" }],
  });
}
