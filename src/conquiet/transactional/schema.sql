-- The tables of the inbox and the outbox, for MySQL 8.0 and newer and MariaDB 10.6 and newer.
-- `create_tables(engine)` runs this file; running it again changes nothing. `conquiet db migrate` changes tables of an
-- earlier version; the comment of a table says which one it has.
--
-- InnoDB and nothing else: the promise is that these rows and yours commit together.
-- Names and ids are VARBINARY: with a text collation 'A-1' and 'a-1' would be one message.
-- Times are UTC and come from the database's own clock.

-- One row per message whose effect is in this database.
CREATE TABLE IF NOT EXISTS `conquiet_inbox` (
    `source`         VARBINARY(255) NOT NULL,  -- stream or queue
    `consumer_group` VARBINARY(255) NOT NULL,  -- empty where there are no groups (RabbitMQ)
    `message_id`     VARBINARY(255) NOT NULL,  -- entry id, or a business key
    `handled_at`     DATETIME(6)    NOT NULL,
    -- SHA-256 of the payload bytes, where the id was made by the broker: such an id can come twice. NULL elsewhere.
    `digest`         VARBINARY(32)  NULL,
    -- In this order, new rows of a stream lie side by side: ids grow, so a million old rows cost nothing.
    PRIMARY KEY (`source`, `consumer_group`, `message_id`),
    KEY `by_age` (`handled_at`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'conquiet schema 3';

-- One row per message that a transaction has caused and that is not published yet.
CREATE TABLE IF NOT EXISTS `conquiet_outbox` (
    `seq`        BIGINT UNSIGNED  NOT NULL AUTO_INCREMENT,
    -- Not made of seq: TRUNCATE restarts seq, and an id that comes back would be taken for a duplicate.
    `message_id` VARBINARY(36)    NOT NULL,
    `target`     VARBINARY(255)   NOT NULL,
    `order_key`  VARBINARY(255)   NULL,
    `free`       TINYINT UNSIGNED NOT NULL,  -- 1 without an order key: such rows are read apart
    `event`      VARBINARY(255)   NULL,      -- for targets that carry several events
    `payload`    MEDIUMBLOB       NOT NULL,  -- a JSON object in UTF-8
    `headers`    BLOB             NULL,      -- names and texts as JSON: a trace context, and what the sender gave
    `created_at` DATETIME(6)      NOT NULL,
    `due_at`     DATETIME(6)      NOT NULL,
    `attempts`   INT UNSIGNED     NOT NULL DEFAULT 0,
    `parked`     TINYINT UNSIGNED NOT NULL DEFAULT 0,
    `reason`     VARBINARY(255)   NULL,      -- why the last attempt was refused
    PRIMARY KEY (`seq`),
    -- Rows without a key come last: locking a range of them also locks the record behind it, and with keyed rows there
    -- relays would deadlock.
    KEY `by_due` (`target`, `parked`, `free`, `due_at`, `seq`),
    KEY `by_key` (`target`, `order_key`, `parked`, `seq`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC COMMENT = 'conquiet schema 3';
