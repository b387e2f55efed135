package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/internal/alarms"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/rights"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

const (
	notifyLimit  = 3 * time.Second // a notification takes milliseconds
	deadTuples   = 10_000          // below it a vacuum has nothing to gain
	fullSequence = 0.8
)

func (p *patient) server(ctx context.Context) (finding, error) {
	var version string
	var standby, tracks bool
	err := p.db.QueryRowContext(ctx, `
SELECT current_setting('server_version'), pg_is_in_recovery(), current_setting('track_activities')::bool`).
		Scan(&version, &standby, &tracks)
	if err != nil {
		return finding{}, err
	}
	readOnly, err := p.condition(ctx, alarms.ReadOnly)
	switch {
	case err != nil:
		return finding{}, err
	case standby:
		return fail("connect to the primary: add target_session_attrs=read-write to the connection string", "PostgreSQL %s is a standby, on which no worker runs", version), nil
	case readOnly.Text != "":
		return fail(readOnly.Remedy, "%s", readOnly.Text), nil
	case !tracks:
		return warn("set track_activities to on", "track_activities is off: nobody sees what open transactions do"), nil
	}
	return ok("PostgreSQL %s, a primary", version), nil
}

// condition finds a condition of the server.
func (p *patient) condition(ctx context.Context, find func(context.Context, store.Querier, tables.Tables, tables.Jobs) (alarms.Condition, error)) (alarms.Condition, error) {
	jobs, err := tables.ParseJobs(p.names)
	if err != nil {
		return alarms.Condition{}, err
	}
	return find(ctx, p.db, p.t, jobs)
}

// connections finds a limit that keeps a worker from connecting.
func (p *patient) connections(ctx context.Context) (finding, error) {
	full, err := p.condition(ctx, alarms.Full)
	switch {
	case err != nil:
		return finding{}, err
	case full.Text != "":
		return warn(full.Remedy, "%s", full.Text), nil
	}
	return ok("no limit is reached"), nil
}

func (p *patient) proxy(ctx context.Context) (finding, error) {
	pooling, err := pgdriver.FindPooling(ctx, pgdriver.Pool{DB: p.db})
	switch {
	case err != nil:
		return finding{}, err
	case pooling.Pooled:
		return warn("workers here need LeaderStrategyLease, and a WithNotifyConnectionString past the proxy if they listen: docs/operations.md, Behind PgBouncer", "the connection goes through a transaction-pooling proxy"), nil
	}
	return ok("each connection keeps its session"), nil
}

// notify sends a notification through the server and waits for it.
func (p *patient) notify(ctx context.Context) (finding, error) {
	const channel = "pgfrontier_doctor"
	conn, err := p.db.Conn(ctx)
	if err != nil {
		return finding{}, err
	}
	defer conn.Close()
	defer pgdriver.Discard(conn) // it has listened
	if _, err := conn.ExecContext(ctx, `LISTEN `+channel); err != nil {
		return finding{}, err
	}
	said := fmt.Sprint(time.Now().UnixNano())
	if _, err := p.db.ExecContext(ctx, `SELECT pg_notify($1::text, $2::text)`, channel, said); err != nil {
		return finding{}, err
	}
	short, cancel := context.WithTimeout(ctx, notifyLimit)
	defer cancel()
	heard := false
	err = conn.Raw(func(driver any) error {
		c, known := driver.(*stdlib.Conn)
		if !known {
			return errors.New("the driver is not pgx")
		}
		for !heard {
			n, err := c.Conn().WaitForNotification(short)
			if err != nil {
				return err
			}
			heard = n.Payload == said
		}
		return nil
	})
	switch {
	case heard:
		return ok("a notification came back"), nil
	case ctx.Err() == nil && short.Err() != nil:
		return warn("workers that listen need a WithNotifyConnectionString that leads past the proxy", "no notification came back within %v", notifyLimit), nil
	}
	return finding{}, err
}

func (p *patient) rowSecurity(ctx context.Context) (finding, error) {
	remedy, err := rights.Hidden(ctx, p.db, p.ourTables()...)
	switch {
	case err != nil:
		return finding{}, err
	case remedy != "":
		hides, mend, _ := strings.Cut(remedy, ": ")
		return fail(mend, "%s, and a worker of this role does not start", hides), nil
	}
	return ok("none hides rows from this role"), nil
}

func (p *patient) tables(ctx context.Context) (finding, error) {
	err := migrations.Check(ctx, p.db, &migrations.Config{Names: p.names})
	if errors.Is(err, migrations.ErrNotApplied) {
		var errJobs error
		if p.jobsOnly, errJobs = p.haveJobsOnly(ctx); errJobs == nil && p.jobsOnly {
			return ok("none of consumers, those of jobs only"), nil
		}
	}
	return versionOf(err, migrations.Version, "pgfrontier migrate up; or name the tables with --table")
}

// versionOf judges what a check of tables has returned. migrate is the remedy for those that are
// missing, or older than this program.
func versionOf(err error, version int, migrate string) (finding, error) {
	switch {
	case errors.Is(err, migrations.ErrNotApplied):
		return fail(migrate, "%v", err), nil
	case errors.Is(err, migrations.ErrNewerVersion):
		return fail("use the pgfrontier of the newer version", "%v", err), nil
	case err != nil:
		return finding{}, err
	}
	return ok("version %d", version), nil
}

// eventLog checks what the frontier's proof stands on.
func (p *patient) eventLog(ctx context.Context) (finding, error) {
	conn, err := p.db.Conn(ctx)
	if err != nil {
		return finding{}, err
	}
	defer conn.Close()
	log := storepostgres.NewStore(storepostgres.NewStoreConfig(storepostgres.WithNames(p.names)))
	source, err := frontier.Config{DB: p.db, Log: log, Token: p.t.Token, Settled: p.t.Settled, Changes: p.t.Changes, StaleAfter: time.Second, Interval: time.Second}.Preflight(ctx, conn)
	p.sequence = source.Sequence
	var setup *frontier.SetupError
	switch {
	case errors.Is(err, frontier.ErrNoPrivilege) && errors.As(err, &setup):
		return warn(setup.Remedy+"; or run the doctor as the workers' role, if that is another", "could not be checked: %s", setup.Detail), nil
	case errors.As(err, &setup):
		return fail(setup.Remedy, "%v: %s", setup.Err, setup.Detail), nil
	case err != nil:
		return finding{}, err
	}
	return ok("%s draws from %s, as it should", source.Table, source.Sequence), nil
}

func (p *patient) positions(ctx context.Context) (finding, error) {
	if p.sequence == "" {
		return warn("", "could not be checked: the sequence was not found"), nil
	}
	var used float64
	err := p.db.QueryRowContext(ctx, `
SELECT coalesce(l.last::float8 / s.seqmax::float8, 0) FROM pg_sequence AS s, LATERAL (SELECT pg_sequence_last_value(s.seqrelid) AS last) AS l
WHERE s.seqrelid = to_regclass($1::text)`, p.sequence).Scan(&used)
	switch {
	case err != nil:
		return finding{}, err
	case used > fullSequence:
		return fail("ALTER SEQUENCE "+p.sequence+" NO MAXVALUE, and see that the column is a bigint", "%.0f %% of the positions are used up", used*100), nil
	}
	return ok("%.3g %% are used up", used*100), nil
}

// sequences finds ids that come again.
func (p *patient) sequences(ctx context.Context) (finding, error) {
	var all []ops.Sequence
	if !p.jobsOnly {
		some, err := p.o.Sequences(ctx)
		if err != nil {
			return finding{}, err
		}
		all = append(all, some...)
	}
	if there, err := p.haveJobs(ctx); err != nil {
		return finding{}, err
	} else if there {
		some, err := p.jobs.Sequences(ctx)
		if err != nil {
			return finding{}, err
		}
		all = append(all, some...)
	}
	if len(all) > 0 {
		return fail("pgfrontier sequences --raise, as the owner of the tables", "ids come again: %s", list(listed(all, ops.Sequence.String))), nil
	}
	return ok("none lies below the ids of its table"), nil
}

// ours names the tables of the library to the server.
func (p *patient) ours() string { return strings.Join(listed(p.ourTables(), ident.Table.SQL), "\n") }

func (p *patient) ourTables() []ident.Table {
	all := p.t.All()
	if j, err := tables.ParseJobs(p.names); err == nil {
		all = append(all, j.All()...)
	}
	return all
}

const oursSQL = `SELECT to_regclass(name)::oid FROM unnest(string_to_array($1::text, E'\n')) AS name`

// indexes finds invalid indexes that nobody builds. What sessions of other roles build, this
// role sees with pg_read_all_stats only.
func (p *patient) indexes(ctx context.Context) (finding, error) {
	var names string
	var hidden bool
	err := p.db.QueryRowContext(ctx, `
SELECT coalesce(string_agg(indexrelid::regclass::text, ', ' ORDER BY indexrelid), ''),
	EXISTS (SELECT FROM pg_stat_progress_create_index WHERE datname = current_database() AND relid IS NULL)
FROM pg_index AS i
WHERE NOT indisvalid AND indrelid IN (`+oursSQL+`)
	AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index AS b WHERE b.datname = current_database() AND b.relid = i.indrelid AND b.command LIKE '%CONCURRENTLY')`, p.ours()).Scan(&names, &hidden)
	switch {
	case err != nil:
		return finding{}, err
	case names != "" && hidden:
		return warn("GRANT pg_read_all_stats to this role", "invalid, and another role may still build them: %s", names), nil
	case names != "":
		return warn("REINDEX INDEX CONCURRENTLY, or DROP INDEX if another like it is there", "invalid, from a CREATE INDEX CONCURRENTLY that failed: %s", names), nil
	}
	return ok("all are valid"), nil
}

func (p *patient) visibility(ctx context.Context) (finding, error) {
	roles, err := rights.HiddenAppenders(ctx, p.db, p.t.Events.SQL())
	switch {
	case err != nil:
		return finding{}, err
	case roles != "":
		return warn("GRANT pg_read_all_stats to this role, and to the workers' role if that is another", "this role does not see what transactions of %s do", roles), nil
	}
	return ok("the transactions of all that append show"), nil
}

func (p *patient) transactions(context.Context) (finding, error) {
	if p.fault != nil {
		return warn("mend the log first", "could not be checked"), nil
	}
	var hidden, untracked *ops.Blocker
	for _, b := range p.blockers { // the oldest first
		switch {
		case b.PID != 0 && b.Age > p.maxAge:
			return fail(b.Remedy(), "pid %d (%s, %s) has held the log back for %s", b.PID, dash(b.User), dash(b.State), short(b.Age)), nil
		case b.Start == nil && b.State == "disabled":
			untracked = &b
		case b.Start == nil:
			hidden = &b
		}
	}
	switch {
	case hidden != nil:
		return warn("GRANT pg_read_all_stats to this role", "since when pid %d (%s) holds the log back, this role does not see", hidden.PID, dash(hidden.User)), nil
	case untracked != nil:
		return warn("set track_activities to on for the role of that session", "pid %d (%s) holds the log back, and since when is hidden: its track_activities is off", untracked.PID, dash(untracked.User)), nil
	}
	return ok("%d have drawn positions, none for longer than %s", len(p.blockers), short(p.maxAge)), nil
}

func (p *patient) prepared(context.Context) (finding, error) {
	if p.fault != nil {
		return warn("mend the log first", "could not be checked"), nil
	}
	for _, b := range p.blockers {
		if b.PID == 0 {
			return fail(b.Remedy(), "prepared transaction %q holds the log back until somebody ends it", b.GID), nil
		}
	}
	return ok("none holds the log back"), nil
}

// vacuum finds what has drawn no positions and is open for long all the same: it
// keeps the server from removing dead rows, or keeps locks.
func (p *patient) vacuum(ctx context.Context) (finding, error) {
	held, err := pgdriver.QueryAll(ctx, p.db, scanHolder, holdersSQL, p.maxAge.Microseconds())
	if err != nil {
		return finding{}, err
	}
	held = slices.DeleteFunc(held, func(h holder) bool { // the other checks name them
		return slices.ContainsFunc(p.blockers, func(b ops.Blocker) bool { return b.PID == h.pid && b.GID == h.gid })
	})
	var hidden int
	if err := p.db.QueryRowContext(ctx, hiddenSQL).Scan(&hidden); err != nil {
		return finding{}, err
	}
	unseen := ""
	if hidden > 0 {
		unseen = fmt.Sprintf("; since when %d sessions of other roles are in a transaction, this role does not see", hidden)
	}
	switch {
	case len(held) > 0:
		return warn("let their application end them, or SELECT pg_terminate_backend(PID), or ROLLBACK PREPARED 'GID'; idle_in_transaction_session_timeout ends idle ones by itself",
			"%s%s", list(listed(held, holder.String)), unseen), nil
	case hidden > 0:
		return warn("GRANT pg_read_all_stats to this role", "none seen%s", unseen), nil
	}
	return ok("nothing has held it back for longer than %s", short(p.maxAge)), nil
}

// holder is a transaction that is open for long, of a session or prepared.
type holder struct {
	pid                     int    // 0: prepared
	gid, application, state string // the application of a session, or the owner
	age                     time.Duration
	holds                   bool // dead rows; otherwise only locks
}

func scanHolder(rows *sql.Rows) (h holder, err error) {
	var age int64
	err = rows.Scan(&h.pid, &h.gid, &h.application, &h.state, &age, &h.holds)
	h.age = time.Duration(age) * time.Microsecond
	return h, err
}

func (h holder) String() string {
	does := "keeps locks"
	if h.holds {
		does = "keeps dead rows from vacuum"
	}
	if h.pid == 0 {
		return fmt.Sprintf("prepared transaction %q of %s %s for %s", h.gid, h.application, does, short(h.age))
	}
	return fmt.Sprintf("pid %d (%s, %s) %s for %s", h.pid, dash(h.application), dash(h.state), does, short(h.age))
}

// holdersSQL finds who holds back vacuum in this database: a transaction that has a
// snapshot, or an id. A vacuum has a snapshot that holds nothing back. $1 is an age in
// microseconds.
const holdersSQL = `
SELECT * FROM (
	SELECT pid, '' AS gid, coalesce(application_name, '') AS application, coalesce(state, '') AS state,
		(extract(epoch FROM clock_timestamp() - CASE WHEN holds THEN xact_start ELSE state_change END) * 1000000)::bigint AS age, holds
	FROM (SELECT *, backend_xmin IS NOT NULL OR backend_xid IS NOT NULL AS holds FROM pg_stat_activity) AS a
	WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND xact_start IS NOT NULL
		AND (holds OR state LIKE 'idle in transaction%') AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum)
	UNION ALL
	SELECT 0, gid, owner::text, '', (extract(epoch FROM clock_timestamp() - prepared) * 1000000)::bigint, true
	FROM pg_prepared_xacts WHERE database = current_database()
) AS h WHERE age > $1::bigint ORDER BY age DESC`

// hiddenSQL counts the sessions in this database that show this role nothing.
const hiddenSQL = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usesysid IS NOT NULL AND backend_type IS NULL`

func (p *patient) deadTuples(ctx context.Context) (finding, error) {
	var bloated string
	err := p.db.QueryRowContext(ctx, `
SELECT coalesce(string_agg(relid::regclass || ' (' || n_dead_tup || ')', ', ' ORDER BY n_dead_tup DESC), '') FROM pg_stat_user_tables
WHERE relid IN (`+oursSQL+`) AND n_dead_tup > $2::bigint AND n_dead_tup > 2 * n_live_tup`, p.ours(), deadTuples).Scan(&bloated)
	switch {
	case err != nil:
		return finding{}, err
	case bloated != "":
		return warn("VACUUM them; see why autovacuum does not: it is off for them, or an old transaction or replication slot holds it back", "many dead rows: %s", bloated), nil
	}
	return ok("few"), nil
}
