// The client library under the original consumer.
const [modules, url, queue, number, prefetch] = process.argv.slice(2);
const { Connection } = require(`${modules}/rabbitmq-client`);
const rabbit = new Connection(url);
let seen = 0, began;
const consumer = rabbit.createConsumer(
  { queue, requeue: false, queueOptions: { passive: true }, concurrency: Math.max(1, prefetch / 2), qos: { prefetchCount: +prefetch } },
  async (message) => {
    if (seen === 0) began = process.hrtime.bigint();
    JSON.parse(message.body.toString());
    if (++seen === +number) {
      console.log("RESULT", Number(process.hrtime.bigint() - began) / 1e9);
      setTimeout(() => process.exit(0), 200);
    }
  },
);
consumer.on("error", (error) => console.error(error));
