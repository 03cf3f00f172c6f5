// Standard Webhooks, and those who send as it says: signed by its library, accepted by theirs.

import { AT, AT_ISO, AT_MS, accepted, at, compact, json, load, require, write } from "./common.mjs";

const WHSEC = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER_WHSEC = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

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

export async function standardWebhooks() {
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

export async function standardFamily() {
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
