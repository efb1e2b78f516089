// Requests to the server.
"use strict";

const token = new URLSearchParams(location.search).get("token");

function address(path) {
  return `${path}${path.includes("?") ? "&" : "?"}token=${token}`;
}

function connectionError(status) {
  return status === 403
    ? "This page belongs to an earlier session. Open the address that labelsieve review printed."
    : "The server does not respond. Start labelsieve review again and open the address that it prints.";
}

// Returns the answer with its HTTP `status`; a refused request has `error`.
async function request(path, body) {
  const post = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  try {
    const answer = await fetch(address(path), body === undefined ? {} : post);
    if (answer.status === 403) return { status: 403, error: connectionError(403) };
    return { status: answer.status, ...(await answer.json()) };
  } catch {
    return { status: 0, error: connectionError(0) };
  }
}
