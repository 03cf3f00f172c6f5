// Makes the vectors whose signer or verifier is published on npm. See README.md for how to run it.
//
// A case is written only if the code of somebody else signed it, or accepted it and refused the same
// request with a changed body. `made_by` says which of the two. The clock is fixed, so that a second
// run writes the same bytes.

import crypto from "node:crypto";
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { mock } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const require = createRequire(path.join(process.cwd(), "package.json"));
const AT_MS = Date.parse("2026-11-01T12:00:00Z");
const AT = AT_MS / 1000;
const AT_ISO = new Date(AT_MS).toISOString().replace(".000Z", "Z");
mock.timers.enable({ apis: ["Date"], now: AT_MS });

const root = (name) => path.join(process.cwd(), "node_modules", name);
const version = (name) => JSON.parse(fs.readFileSync(path.join(root(name), "package.json"))).version;
const at = (name) => `npm ${name} ${version(name)}`;
const load = (name, file) => import(pathToFileURL(path.join(root(name), file)));

const hmac = (key, text, encoding, algorithm = "sha256") =>
  crypto.createHmac(algorithm, key).update(text).digest(encoding);
const compact = (value) => JSON.stringify(value);

function write(provider, name, vector) {
  const folder = path.join(HERE, provider);
  fs.mkdirSync(folder, { recursive: true });
  const { made_by, secret, ...rest } = vector;
  const whole = {
    made_by,
    secret,
    at: AT_ISO,
    method: "POST",
    url: `https://gateway.example.com/webhooks/${provider}`,
    ...rest,
  };
  fs.writeFileSync(path.join(folder, `${name}.json`), JSON.stringify(whole, null, 2) + "\n");
}

/** Accepted as it is, refused when the body is another: else the check itself proves nothing. */
async function accepted(body, check) {
  if (!(await holds(check, body))) throw new Error(`refused: ${body}`);
  if (await holds(check, body.replace(/.$/s, " ") + " "))
    throw new Error(`accepted although changed: ${body}`);
}

async function holds(check, body) {
  try {
    return (await check(body)) !== false;
  } catch {
    return false;
  }
}

const json = { "content-type": "application/json" };
const WHSEC = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER_WHSEC = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

// ---------------------------------------------------------------- Standard Webhooks and its family

const { Webhook } = require("standardwebhooks");
const SIGNED = `${at("standardwebhooks")} Webhook.sign`;

function standard(body, { id = "msg_2bB1mWqXz8vKj3nYtR5sLp", secret = WHSEC, prefix = "webhook" } = {}) {
  return {
    ...json,
    [`${prefix}-id`]: id,
    [`${prefix}-timestamp`]: String(AT),
    [`${prefix}-signature`]: new Webhook(secret).sign(id, new Date(AT_MS), body),
  };
}

async function standardWebhooks() {
  const published = '{"test": 2432232314}';
  const id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
  write("standard-webhooks", "published", {
    made_by: `${SIGNED}, and the vector of the reference libraries' own tests`,
    secret: WHSEC,
    at: "2021-02-25T15:02:10Z",
    headers: {
      ...json,
      "webhook-id": id,
      "webhook-timestamp": "1614265330",
      "webhook-signature": new Webhook(WHSEC).sign(id, new Date(1614265330e3), published),
    },
    body: published,
    events: null,
  });
  const body = compact({ type: "invoice.paid", timestamp: AT_ISO, data: { id: "in_1", total: 4200 } });
  write("standard-webhooks", "event", {
    made_by: SIGNED,
    secret: WHSEC,
    headers: standard(body),
    body,
    events: [{ id: "msg_2bB1mWqXz8vKj3nYtR5sLp", type: "invoice.paid" }],
  });
  const one = standard(body, { secret: OTHER_WHSEC });
  const two = standard(body);
  write("standard-webhooks", "two-signatures", {
    made_by: `${SIGNED}, one signature per secret`,
    secret: WHSEC,
    headers: { ...two, "webhook-signature": `${one["webhook-signature"]} ${two["webhook-signature"]}` },
    body,
    events: [{ id: "msg_2bB1mWqXz8vKj3nYtR5sLp", type: "invoice.paid" }],
  });
  const svix = require("svix");
  const svixHeaders = standard(body, { prefix: "svix" });
  svixHeaders["svix-signature"] = new svix.Webhook(WHSEC).sign(
    "msg_2bB1mWqXz8vKj3nYtR5sLp", new Date(AT_MS), body);
  for (const provider of ["standard-webhooks", "svix"])
    write(provider, provider === "svix" ? "event" : "svix-headers", {
      made_by: `${at("svix")} Webhook.sign`,
      secret: WHSEC,
      headers: svixHeaders,
      body,
      events: [{ id: "msg_2bB1mWqXz8vKj3nYtR5sLp", type: "invoice.paid" }],
    });
}

async function standardFamily() {
  const id = "wh_685343a1381c819085d44c354e1b330e";
  const openai = require("openai");
  let body = compact({
    id: "evt_685343a1381c819085d44c354e1b330e", object: "event", created_at: AT,
    type: "response.completed", data: { id: "resp_abc123" },
  });
  let headers = standard(body, { id });
  const client = new openai.OpenAI({ apiKey: "none" });
  await accepted(body, (text) => client.webhooks.unwrap(text, headers, WHSEC));
  write("openai", "event", {
    made_by: `${SIGNED}, accepted by ${at("openai")} webhooks.unwrap`,
    secret: WHSEC, headers, body, events: [{ id, type: "response.completed" }],
  });

  const { Anthropic } = require("@anthropic-ai/sdk");
  body = compact({
    type: "event", id: "wevt_011CZkZFNu9hAbo5jZPRgTlX", created_at: AT_ISO,
    data: { type: "session.status_idled", id: "sesn_011CZkZAtmR3yMPDzynEDxu7" },
  });
  headers = standard(body, { id: "wevt_011CZkZFNu9hAbo5jZPRgTlX" });
  const anthropic = new Anthropic({ apiKey: "none" });
  await accepted(body, (text) => anthropic.beta.webhooks.unwrap(text, { headers, key: WHSEC }));
  write("anthropic", "event", {
    made_by: `${SIGNED}, accepted by ${at("@anthropic-ai/sdk")} beta.webhooks.unwrap`,
    secret: WHSEC, headers, body,
    events: [{ id: "wevt_011CZkZFNu9hAbo5jZPRgTlX", type: "session.status_idled" }],
  });

  const { verifyWebhook } = await load("@clerk/backend", "dist/webhooks.mjs");
  body = compact({
    data: { id: "user_29w83sxmDNGwOuEthce5gg56FcC", object: "user" }, object: "event",
    type: "user.created", timestamp: AT_MS, instance_id: "ins_123",
  });
  headers = standard(body, { prefix: "svix" });
  await accepted(body, (text) => verifyWebhook(
    new Request("https://gateway.example.com/", { method: "POST", headers, body: text }),
    { signingSecret: WHSEC }));
  write("clerk", "event", {
    made_by: `${SIGNED}, accepted by ${at("@clerk/backend")} verifyWebhook`,
    secret: WHSEC, headers, body, events: [{ id: "msg_2bB1mWqXz8vKj3nYtR5sLp", type: "user.created" }],
  });

  const { Resend } = require("resend");
  body = compact({
    type: "email.delivered", created_at: AT_ISO,
    data: { email_id: "56761188-7520-42d8-8898-ff6fc54ce618", to: ["delivered@resend.dev"] },
  });
  headers = standard(body, { prefix: "svix" });
  const resend = new Resend("re_none");
  await accepted(body, (text) => resend.webhooks.verify({
    payload: text, webhookSecret: WHSEC,
    headers: {
      id: headers["svix-id"], timestamp: headers["svix-timestamp"], signature: headers["svix-signature"],
    },
  }));
  write("resend", "event", {
    made_by: `${SIGNED}, accepted by ${at("resend")} webhooks.verify`,
    secret: WHSEC, headers, body, events: [{ id: "msg_2bB1mWqXz8vKj3nYtR5sLp", type: "email.delivered" }],
  });

  const { validateWebhook } = require("replicate");
  body = compact({
    id: "ufawqhfynnddngldkgtslldrkq", status: "succeeded", created_at: AT_ISO, completed_at: AT_ISO,
    output: ["https://replicate.example/out.png"],
  });
  headers = standard(body);
  await accepted(body, (text) => validateWebhook({ headers, body: text }, WHSEC));
  write("replicate", "event", {
    made_by: `${SIGNED}, accepted by ${at("replicate")} validateWebhook`,
    secret: WHSEC, headers, body, events: [{ id: "msg_2bB1mWqXz8vKj3nYtR5sLp", type: "succeeded" }],
  });

  const polar = require("@polar-sh/sdk/webhooks");
  const polarSecret = "polar_whs_bFq3vZ0mVxk2Zr1Yb7Qp";
  body = compact({ type: "order.refunded", timestamp: AT_ISO, data: { id: "ord_1" } });
  headers = standard(body, { secret: Buffer.from(polarSecret).toString("base64") });
  await accepted(body, (text) => {
    try {
      polar.validateEvent(text, headers, polarSecret);
    } catch (error) {
      // The signature is checked first; that a shortened order is no whole order is another error.
      if (error instanceof polar.WebhookVerificationError) throw error;
      return true;
    }
  });
  write("polar", "event", {
    made_by: `${SIGNED}, accepted by ${at("@polar-sh/sdk")} validateEvent`,
    secret: polarSecret, headers, body,
    events: [{ id: "msg_2bB1mWqXz8vKj3nYtR5sLp", type: "order.refunded" }],
  });

  const { DodoPayments } = require("dodopayments");
  body = compact({
    business_id: "bus_1", type: "payment.succeeded", timestamp: AT_ISO,
    data: { payload_type: "Payment", payment_id: "pay_1" },
  });
  headers = standard(body);
  const dodo = new DodoPayments({ bearerToken: "none" });
  await accepted(body, (text) => dodo.webhooks.unwrap(text, { headers, key: WHSEC }));
  write("dodo-payments", "event", {
    made_by: `${SIGNED}, accepted by ${at("dodopayments")} webhooks.unwrap`,
    secret: WHSEC, headers, body,
    events: [{ id: "msg_2bB1mWqXz8vKj3nYtR5sLp", type: "payment.succeeded" }],
  });

  const { Lithic } = require("lithic");
  body = compact({ event_type: "card.created", token: "4d6cd2ec-2ac1-4a2d-a8a5-d2a4b8a1d2b3" });
  headers = standard(body);
  const lithic = new Lithic({ apiKey: "none" });
  await accepted(body, (text) => lithic.webhooks.unwrap(text, headers, WHSEC));
  write("lithic", "event", {
    made_by: `${SIGNED}, accepted by ${at("lithic")} webhooks.unwrap`,
    secret: WHSEC, headers, body, events: [{ id: "msg_2bB1mWqXz8vKj3nYtR5sLp", type: "card.created" }],
  });

  const { WebhookHandler } = require("@liveblocks/node");
  body = compact({ type: "commentCreated", data: { projectId: "p_1", roomId: "r_1", commentId: "cm_1" } });
  headers = standard(body);
  const liveblocks = new WebhookHandler(WHSEC);
  await accepted(body, (text) => Boolean(liveblocks.verifyRequest({ headers, rawBody: text })));
  write("liveblocks", "event", {
    made_by: `${SIGNED}, accepted by ${at("@liveblocks/node")} WebhookHandler.verifyRequest`,
    secret: WHSEC, headers, body, events: [{ id: "msg_2bB1mWqXz8vKj3nYtR5sLp", type: "commentCreated" }],
  });

  body = compact({ object_kind: "push", event_name: "push", ref: "refs/heads/main", project_id: 15 });
  write("gitlab-signed", "event", {
    made_by: `${SIGNED}; GitLab's signing tokens follow that specification`,
    secret: WHSEC,
    headers: {
      ...standard(body, { id: "f5e5f430-f57b-4e6e-9fac-d9128cd7232f" }),
      "x-gitlab-event": "Push Hook",
      "idempotency-key": "f5e5f430-f57b-4e6e-9fac-d9128cd7232f",
    },
    body,
    events: [{ id: "f5e5f430-f57b-4e6e-9fac-d9128cd7232f", type: "push" }],
  });
}

// ---------------------------------------------------------------- signed by the vendor's own code

async function signedByVendors() {
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
      "x-signature": treasury.webhooks.getSignature(body),
    },
    body,
    events: [{ id: null, type: "payment_order.completed" }],
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
    events: [{ id: null, type: "callback" }],
  });
  const message = {
    MessageSid: "SM1234567890abcdef1234567890abcdef", MessageStatus: "delivered", SmsStatus: "delivered",
    AccountSid: "AC1234567890abcdef1234567890abcdef", From: "+14158675309", To: "+18005551212",
  };
  const url = "https://gateway.example.com/webhooks/twilio";
  write("twilio", "event", {
    made_by: `${at("twilio")} getExpectedTwilioSignature`,
    secret: token, url,
    headers: {
      ...form, "i-twilio-idempotency-token": "3f2f1c1e-6d0a-4c5b-9d5a-1b2c3d4e5f60",
      "x-twilio-signature": lib.getExpectedTwilioSignature(token, url, message),
    },
    body: new URLSearchParams(message).toString(),
    events: [{ id: "3f2f1c1e-6d0a-4c5b-9d5a-1b2c3d4e5f60", type: "callback" }],
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
    events: [{ id: "7d2f1c1e-6d0a-4c5b-9d5a-1b2c3d4e5f61", type: "callback" }],
  });
}

// ---------------------------------------------------------------- accepted by the vendor's verifier

async function checkedByVendors() {
  const by = (verifier) => `signed with node:crypto, accepted by ${verifier}`;
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
    events: [{ id: "234d1a4e-b617-4388-90fe-adc3633d6b72", type: "Issue.create" }],
  });

  await discord(by);

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

  await sendgrid(by);

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

  const { WebflowClient } = require("webflow-api");
  secret = "webflow-secret";
  const webflow = new WebflowClient({ accessToken: "none" });
  body = compact({ triggerType: "form_submission", payload: { name: "Contact", id: "6321ca84df3949bfc6752327", submittedAt: AT_ISO } });
  headers = { ...json, "x-webflow-timestamp": String(AT_MS), "x-webflow-signature": hmac(secret, `${AT_MS}:${body}`, "hex") };
  await accepted(body, (text) => webflow.webhooks.verifySignature({ headers, body: text, secret }));
  write("webflow", "event", {
    made_by: by(`${at("webflow-api")} webhooks.verifySignature`), secret, headers, body,
    events: [{ id: null, type: "form_submission" }],
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

  const { MailerSendUtils } = require("mailersend/lib/services/mailersend.utils.js");
  secret = "mailersend-secret";
  body = compact({ type: "activity.sent", domain_id: "d1", created_at: AT_ISO, webhook_id: "w1", data: { object: "activity", id: "62f114f8165fe0d8db0288e3" } });
  header = hmac(secret, body, "hex");
  await accepted(body, (text) => MailerSendUtils.verifyWebHook(text, header, secret));
  write("mailersend", "event", {
    made_by: by(`${at("mailersend")} MailerSendUtils.verifyWebHook`), secret, body,
    headers: { ...json, signature: header },
    events: [{ id: "62f114f8165fe0d8db0288e3", type: "activity.sent" }],
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

  await zoom(by);
}

async function zoom(by) {
  const { CommonHttpRequest } = await zoomInternals();
  const secret = "zoom-secret-token";
  const sign = (body) => ({
    ...json, "x-zm-request-timestamp": String(AT),
    "x-zm-signature": `v0=${hmac(secret, `v0:${AT}:${body}`, "hex")}`,
  });
  const process = (body) => CommonHttpRequest.buildFromAwsEvent(
    { body, headers: sign(started), isBase64Encoded: false }, secret).processEvent();
  const started = compact({ event: "meeting.started", payload: { account_id: "AAAAAABBBB", object: { id: "1234567890" } }, event_ts: AT_MS });
  if (process(started).event !== "meeting.started") throw new Error("zoom refused");
  write("zoom", "event", {
    made_by: by(`${at("@zoom/rivet")} CommonHttpRequest.processEvent`), secret,
    headers: sign(started), body: started, events: [{ id: null, type: "meeting.started" }],
  });
  const asked = compact({ payload: { plainToken: "qgg8vlvZRS6UYooatFL8Aw" }, event_ts: AT_MS, event: "endpoint.url_validation" });
  const answer = CommonHttpRequest.buildFromAwsEvent(
    { body: asked, headers: sign(asked), isBase64Encoded: false }, secret).processEvent();
  write("zoom", "url-validation", {
    made_by: by(`${at("@zoom/rivet")} CommonHttpRequest.processEvent, which also made the answer`), secret,
    headers: sign(asked), body: asked, events: [],
    answer: { status: 200, headers: json, body: compact({ plainToken: answer.plainToken, encryptedToken: answer.encryptedToken }) },
  });
}

/** Zoom exports the receivers, not the class in them that verifies: it is taken from the module's text. */
async function zoomInternals() {
  const file = path.join(root("@zoom/rivet"), "meetings/meetings.cjs");
  const text = fs.readFileSync(file, "utf8") + "\nexports.CommonHttpRequest = CommonHttpRequest;\n";
  const module = { exports: {} };
  new Function("module", "exports", "require", text)(module, module.exports, createRequire(file));
  return module.exports;
}

async function sendgrid(by) {
  const { EventWebhook } = require("@sendgrid/eventwebhook");
  const check = (key, body, signature, timestamp) => {
    const lib = new EventWebhook();
    return lib.verifySignature(lib.convertPublicKeyToECDSA(key), body, signature, timestamp);
  };
  const headers = (signature, timestamp) => ({
    ...json,
    "x-twilio-email-event-webhook-signature": signature,
    "x-twilio-email-event-webhook-timestamp": String(timestamp),
  });
  // The two payloads with which SendGrid tests its own library (src/eventwebhook.spec.js there).
  const spec = fs.readFileSync(path.join(root("@sendgrid/eventwebhook"), "src/eventwebhook.spec.js"), "utf8");
  const published = new Function(
    `${spec.slice(spec.indexOf("const PUBLIC_KEY ="), spec.indexOf("describe('#verifySignature()'"))}
     return [[PUBLIC_KEY, PAYLOAD, SIGNATURE, TIMESTAMP],
             [PUBLIC_KEY_MULTIPLE, PAYLOAD_MULTIPLE_EVENTS, SIGNATURE_MULTIPLE, TIMESTAMP_MULTIPLE]];`)();
  const names = ["published", "published-batch"];
  for (const [index, [key, body, signature, timestamp]] of published.entries()) {
    await accepted(body, (text) => check(key, text, signature, timestamp));
    write("sendgrid", names[index], {
      made_by: `published: src/eventwebhook.spec.js of ${at("@sendgrid/eventwebhook")}`,
      secret: key, at: new Date(timestamp * 1000).toISOString().replace(".000Z", "Z"),
      headers: headers(signature, timestamp), body,
      events: JSON.parse(body).map((item) => ({ id: item.sg_event_id, type: item.event })),
    });
  }
}

async function discord(by) {
  const { verifyKey } = require("discord-interactions");
  const nacl = require("tweetnacl");
  const pair = nacl.sign.keyPair.fromSeed(Buffer.alloc(32, 2));
  const hex = (bytes) => Buffer.from(bytes).toString("hex");
  const secret = hex(pair.publicKey);
  const sign = (body) => ({
    ...json, "x-signature-timestamp": String(AT),
    "x-signature-ed25519": hex(nacl.sign.detached(Buffer.from(AT + body), pair.secretKey)),
  });
  const cases = {
    event: [
      compact({ version: 1, application_id: "1234560123453231555", type: 1, event: { type: "APPLICATION_AUTHORIZED", timestamp: AT_ISO, data: { scopes: ["bot"] } } }),
      { events: [{ id: null, type: "APPLICATION_AUTHORIZED" }] },
    ],
    ping: [
      compact({ version: 1, application_id: "1234560123453231555", type: 0 }),
      { events: [], answer: { status: 204 } },
    ],
  };
  for (const [name, [body, expected]] of Object.entries(cases)) {
    const headers = sign(body);
    await accepted(body, (text) => verifyKey(text, headers["x-signature-ed25519"], headers["x-signature-timestamp"], secret));
    write("discord", name, {
      made_by: `signed with ${at("tweetnacl")}, accepted by ${at("discord-interactions")} verifyKey`,
      secret, private_key: ed25519(2).der.toString("base64"), headers, body, ...expected,
    });
  }
}

function ed25519(fill) {
  const seed = Buffer.alloc(32, fill);
  const der = Buffer.concat([Buffer.from("302e020100300506032b657004220420", "hex"), seed]);
  const privateKey = crypto.createPrivateKey({ key: der, format: "der", type: "pkcs8" });
  const raw = crypto.createPublicKey(privateKey).export({ format: "der", type: "spki" }).subarray(-32);
  return { der, privateKey, raw };
}

await standardWebhooks();
await standardFamily();
await signedByVendors();
await checkedByVendors();
