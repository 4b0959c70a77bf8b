// The original consumer. Its prefetch is always twice its concurrency.
const [modules, url, queue, number, prefetch] = process.argv.slice(2);
const { syncQueue } = require(`${modules}/@proca/queue`);
let seen = 0, began;
syncQueue(
  url,
  queue,
  async () => {
    if (seen === 0) began = process.hrtime.bigint();
    if (++seen === +number) {
      console.log("RESULT", Number(process.hrtime.bigint() - began) / 1e9);
      setTimeout(() => process.exit(0), 200);
    }
    return true;
  },
  { concurrency: Math.max(1, prefetch / 2) },
);
