-- The same tables for SQLite: demos and unit tests. One writer at a time, so one worker at a time.

CREATE TABLE IF NOT EXISTS `conquiet_inbox` (
    `source`         BLOB NOT NULL,
    `consumer_group` BLOB NOT NULL,
    `message_id`     BLOB NOT NULL,
    `handled_at`     TEXT NOT NULL,
    `digest`         BLOB NULL,
    PRIMARY KEY (`source`, `consumer_group`, `message_id`)
);

CREATE INDEX IF NOT EXISTS `conquiet_inbox_by_age` ON `conquiet_inbox` (`handled_at`);

CREATE TABLE IF NOT EXISTS `conquiet_outbox` (
    `seq`        INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    `message_id` BLOB    NOT NULL,
    `target`     BLOB    NOT NULL,
    `order_key`  BLOB    NULL,
    `free`       INTEGER NOT NULL,
    `event`      BLOB    NULL,
    `payload`    BLOB    NOT NULL,
    `headers`    BLOB    NULL,
    `created_at` TEXT    NOT NULL,
    `due_at`     TEXT    NOT NULL,
    `attempts`   INTEGER NOT NULL DEFAULT 0,
    `parked`     INTEGER NOT NULL DEFAULT 0,
    `reason`     BLOB    NULL
);

CREATE INDEX IF NOT EXISTS `conquiet_outbox_by_due` ON `conquiet_outbox` (`target`, `parked`, `free`, `due_at`, `seq`);

CREATE INDEX IF NOT EXISTS `conquiet_outbox_by_key` ON `conquiet_outbox` (`target`, `order_key`, `parked`, `seq`);
