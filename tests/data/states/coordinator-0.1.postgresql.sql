CREATE TABLE ledger_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT ledger_version_pkc PRIMARY KEY (version_num)
)
--
CREATE TABLE ledger (
    seq BIGINT NOT NULL,
    time BIGINT NOT NULL,
    kind TEXT NOT NULL,
    study TEXT,
    round BIGINT,
    attempt BIGINT,
    population TEXT,
    dataset TEXT,
    event TEXT,
    delta FLOAT,
    unit TEXT,
    cohort_size BIGINT,
    colluders BIGINT,
    context TEXT,
    detail TEXT NOT NULL,
    previous TEXT NOT NULL,
    hash TEXT NOT NULL,
    signature TEXT NOT NULL,
    PRIMARY KEY (seq),
    UNIQUE (previous),
    UNIQUE (hash)
)
--
CREATE INDEX ledger_population ON ledger (population, kind)
--
CREATE INDEX ledger_context ON ledger (context, kind)
--
CREATE UNIQUE INDEX ledger_one_reservation ON ledger (context) WHERE kind = 'reserve'
--
CREATE UNIQUE INDEX ledger_one_attempt ON ledger (study, round, attempt) WHERE kind = 'reserve'
--
CREATE UNIQUE INDEX ledger_one_end ON ledger (context) WHERE kind IN ('charge', 'free')
--
CREATE UNIQUE INDEX ledger_one_charge ON ledger (study, round) WHERE kind = 'charge'
--
CREATE UNIQUE INDEX ledger_one_release ON ledger (context) WHERE kind = 'release-seen'
--
CREATE FUNCTION ledger_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$
--
CREATE FUNCTION ledger_follows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.seq <> (SELECT coalesce(max(seq), 0) + 1 FROM ledger) THEN RAISE EXCEPTION 'the ledger is append-only'; END IF; RETURN NEW; END $$
--
CREATE TRIGGER ledger_no_change BEFORE UPDATE OR DELETE ON ledger FOR EACH ROW EXECUTE FUNCTION ledger_append_only()
--
CREATE TRIGGER ledger_no_truncate BEFORE TRUNCATE ON ledger FOR EACH STATEMENT EXECUTE FUNCTION ledger_append_only()
--
CREATE TRIGGER ledger_in_order BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION ledger_follows()
--
INSERT INTO ledger_version (version_num) VALUES ('0001') RETURNING ledger_version.version_num
--
CREATE TABLE ledger_receipt (
    entry BIGINT NOT NULL,
    position BIGINT NOT NULL,
    context TEXT NOT NULL,
    participant TEXT NOT NULL,
    study TEXT NOT NULL,
    round BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    number BIGINT NOT NULL,
    head TEXT NOT NULL,
    body TEXT NOT NULL,
    signature TEXT NOT NULL,
    certificate TEXT NOT NULL,
    consent TEXT,
    PRIMARY KEY (entry, position),
    UNIQUE (context, participant),
    UNIQUE (study, participant, number)
)
--
CREATE INDEX ledger_receipt_participant ON ledger_receipt (participant, entry)
--
CREATE TABLE ledger_certificate (
    fingerprint TEXT NOT NULL,
    certificate TEXT NOT NULL,
    PRIMARY KEY (fingerprint)
)
--
CREATE UNIQUE INDEX ledger_one_recovery ON ledger (context) WHERE kind = 'recovery'
--
CREATE UNIQUE INDEX ledger_one_showing ON ledger (context) WHERE kind = 'receipts'
--
CREATE UNIQUE INDEX ledger_one_consent ON ledger (context) WHERE kind = 'consent'
--
CREATE INDEX ledger_round ON ledger (study, round, kind)
--
CREATE FUNCTION ledger_receipt_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'the ledger''s receipts are append-only'; END $$
--
CREATE TRIGGER ledger_receipt_no_update BEFORE UPDATE ON ledger_receipt FOR EACH ROW WHEN (OLD.consent IS NOT NULL OR NEW.consent IS NULL OR NEW.entry <> OLD.entry OR NEW.position <> OLD.position OR NEW.context <> OLD.context OR NEW.participant <> OLD.participant OR NEW.study <> OLD.study OR NEW.round <> OLD.round OR NEW.attempt <> OLD.attempt OR NEW.number <> OLD.number OR NEW.head <> OLD.head OR NEW.body <> OLD.body OR NEW.signature <> OLD.signature OR NEW.certificate <> OLD.certificate) EXECUTE FUNCTION ledger_receipt_append_only()
--
CREATE TRIGGER ledger_receipt_no_delete BEFORE DELETE ON ledger_receipt FOR EACH ROW EXECUTE FUNCTION ledger_receipt_append_only()
--
CREATE TRIGGER ledger_receipt_no_truncate BEFORE TRUNCATE ON ledger_receipt FOR EACH STATEMENT EXECUTE FUNCTION ledger_receipt_append_only()
--
CREATE TRIGGER ledger_certificate_no_change BEFORE UPDATE OR DELETE ON ledger_certificate FOR EACH ROW EXECUTE FUNCTION ledger_receipt_append_only()
--
CREATE TRIGGER ledger_certificate_no_truncate BEFORE TRUNCATE ON ledger_certificate FOR EACH STATEMENT EXECUTE FUNCTION ledger_receipt_append_only()
--
UPDATE ledger_version SET version_num='0002' WHERE ledger_version.version_num = '0001'
--
CREATE TABLE coordinator_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT coordinator_version_pkc PRIMARY KEY (version_num)
)
--
CREATE TABLE coordinator_study (
    digest BYTEA NOT NULL,
    object BYTEA NOT NULL,
    analyst VARCHAR(64) NOT NULL,
    submitted BIGINT NOT NULL,
    phase VARCHAR(16) NOT NULL,
    reason TEXT NOT NULL,
    status BYTEA,
    PRIMARY KEY (digest)
)
--
CREATE TABLE coordinator_sum (
    study BYTEA NOT NULL,
    round INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    assignment BYTEA NOT NULL,
    ciphertexts BYTEA,
    receipts TEXT NOT NULL,
    PRIMARY KEY (study, round)
)
--
CREATE TABLE coordinator_release (
    study BYTEA NOT NULL,
    round INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    label VARCHAR(64) NOT NULL,
    cohort TEXT NOT NULL,
    values BYTEA NOT NULL,
    digest BYTEA NOT NULL,
    time BIGINT NOT NULL,
    PRIMARY KEY (study, round)
)
--
INSERT INTO coordinator_version (version_num) VALUES ('0001') RETURNING coordinator_version.version_num
--
CREATE TABLE coordinator_member (
    study BYTEA NOT NULL,
    name VARCHAR(64) NOT NULL,
    enrolment BYTEA NOT NULL,
    boxes BYTEA,
    PRIMARY KEY (study, name)
)
--
CREATE TABLE coordinator_progress (
    study BYTEA NOT NULL,
    state TEXT NOT NULL,
    PRIMARY KEY (study)
)
--
CREATE TABLE coordinator_round (
    study BYTEA NOT NULL,
    round INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    broadcast BYTEA NOT NULL,
    allowed TEXT NOT NULL,
    assignment BYTEA NOT NULL,
    started BIGINT NOT NULL,
    received BIGINT NOT NULL,
    PRIMARY KEY (study, round)
)
--
ALTER TABLE coordinator_sum ADD COLUMN sizes TEXT
--
UPDATE coordinator_version SET version_num='0002' WHERE coordinator_version.version_num = '0001'
--
CREATE TABLE coordinator_fence (
    id SERIAL NOT NULL,
    epoch BIGINT NOT NULL,
    token BYTEA NOT NULL,
    holder TEXT NOT NULL,
    since BIGINT NOT NULL,
    PRIMARY KEY (id)
)
--
UPDATE coordinator_version SET version_num='0003' WHERE coordinator_version.version_num = '0002'
