// An Express application that serves each client address as often as the server's rules allow.
//
//     PORT=3000 node express_app.js

import type { AddressInfo } from "node:net";

import express from "express";
import { clientKey, limit } from "tidegate/express";

const app = express();
app.use(limit({ key: clientKey("web") }));
app.get("/", (_request, response) => {
  response.json({ hello: "world" });
});

const server = app.listen(Number(process.env.PORT ?? 3000), "127.0.0.1", () => {
  console.log(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
});
