package main

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/alarms"
	"github.com/pgfrontier/worker/internal/demand"
	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
)

// manyRanges is which part of WithMaxOpenRanges a consumer may have passed.
const manyRanges = 0.8

func (p *patient) alive(context.Context) (finding, error) {
	dead := p.silentOnes()
	switch {
	case len(dead) < len(p.workers) && len(dead) > 0:
		return warn(silentRemedy, "no heartbeat for long: %s", list(dead)), nil
	case len(p.living()) == 0 && len(p.consumers) > 0:
		return fail("start the workers; "+silentReason, "no worker lives"), nil
	}
	return ok("%d live", len(p.living())), nil
}

const (
	silentReason = "if a process lives, its probe of readiness and its log say why it is silent"
	silentRemedy = "see whether these processes live; " + silentReason + "; another worker removes the rows of dead ones"
)

// silentOnes are the workers whose heartbeat is old.
func (v view) silentOnes() (dead []string) {
	for _, w := range v.workers {
		switch {
		case w.HeartbeatAge < 0:
			dead = append(dead, fmt.Sprintf("%s (its heartbeat is %s ahead of the database's clock, which was set back)", placeOf(w), short(-w.HeartbeatAge)))
		case alarms.IsSilent(w):
			dead = append(dead, fmt.Sprintf("%s (%s)", placeOf(w), short(w.HeartbeatAge)))
		}
	}
	return dead
}

func (p *patient) oneLeader(context.Context) (finding, error) {
	leaders := p.leaders()
	switch {
	case len(p.living()) > 0 && len(leaders) == 0:
		return warn("run it again in half a minute; then see what the workers complain of", "no worker leads, so nobody assigns consumers"), nil
	case len(leaders) > 1:
		return warn("run it again in half a minute; then see that all use one LeaderStrategy", "more than one worker says that it leads: %s", list(leaders)), nil
	}
	return ok("%s", dash(list(leaders))), nil
}

func (p *patient) builds(context.Context) (finding, error) {
	var all []string
	for _, w := range p.living() {
		if name := fmt.Sprintf("%s (protocol %d)", dash(w.Build), w.Protocol); !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	if len(all) > 1 {
		return warn("finish the deployment, or find the processes that it has missed", "workers of different builds run side by side: %s", list(all)), nil
	}
	return ok("%s", dash(list(all))), nil
}

func (p *patient) complaints(context.Context) (finding, error) {
	var all []string
	for _, w := range p.living() {
		for _, text := range complaints(w.Status) {
			all = append(all, p.place(w.ID)+": "+text)
		}
	}
	if len(all) > 0 {
		return fail("see the log of that worker", "%s", list(all)), nil
	}
	return ok("no worker has one"), nil
}

// clocks compares clocks with the database's, which alone decides anything. Of this
// machine's it knows the difference to half a round trip. A worker tells when, by its own
// clock, the heartbeat before its last one began. So it is ahead if that is later than the
// last one by the database's clock; if it is behind, nothing shows that.
func (p *patient) clocks(ctx context.Context) (finding, error) {
	ahead, within, err := p.ahead(ctx)
	if err != nil {
		return finding{}, err
	}
	var wrong []string
	switch {
	case ahead-within > skewed:
		wrong = append(wrong, fmt.Sprintf("this machine's is %s ahead", short(ahead)))
	case -ahead-within > skewed:
		wrong = append(wrong, fmt.Sprintf("this machine's is %s behind", short(-ahead)))
	}
	told, err := pgdriver.QueryAll(ctx, p.db, func(rows *sql.Rows) (text string, err error) {
		var id uuid.UUID
		var beat int64
		var status string
		var said struct{ LastHeartbeat time.Time }
		if err := rows.Scan(&id, &beat, &status); err != nil {
			return "", err
		}
		_ = json.Unmarshal([]byte(status), &said) // of another library it may be anything
		if ahead := said.LastHeartbeat.Sub(time.UnixMicro(beat)); ahead > skewed {
			text = fmt.Sprintf("that of %s is at least %s ahead", p.place(id), short(ahead))
		}
		return text, nil
	}, `
SELECT worker_id, `+pgdriver.Microseconds(`heartbeat_at`)+`, coalesce(status::text, '') FROM `+p.t.Nodes.SQL()+`
WHERE isfinite(heartbeat_at) ORDER BY heartbeat_at DESC`)
	if err != nil {
		return finding{}, err
	}
	wrong = append(wrong, slices.DeleteFunc(told, func(text string) bool { return text == "" })...)
	if len(wrong) > 0 {
		return warn("see that NTP runs there and on the database's machine; workers decide by the database's clock, but logs and dashboards are read side by side", "against the database's clock, %s", list(wrong)), nil
	}
	return ok("this machine's and the database's agree to %s, and no worker's is ahead", short(max(ahead, -ahead)+within)), nil
}

// skewed clocks differ by more.
const skewed = 3 * time.Second

// ahead is how far this machine's clock is ahead of the database's, give or take within.
func (p *patient) ahead(ctx context.Context) (ahead, within time.Duration, err error) {
	conn, err := p.db.Conn(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	var now int64
	before := time.Now()
	if err := conn.QueryRowContext(ctx, `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`).Scan(&now); err != nil {
		return 0, 0, err
	}
	within = time.Since(before) / 2
	return before.Add(within).Sub(time.UnixMicro(now)), within, nil
}

// owners finds consumers that nobody runs.
func (p *patient) owners(context.Context) (finding, error) {
	able, lives := map[string]bool{}, map[uuid.UUID]bool{}
	for _, w := range p.living() {
		lives[w.ID] = true
		for _, name := range w.Able {
			able[name] = true
		}
	}
	var without, unassigned, beginning []string
	for name := range able {
		if !slices.ContainsFunc(p.consumers, func(c ops.Consumer) bool { return c.Name == name }) {
			beginning = append(beginning, name)
		}
	}
	slices.Sort(beginning)
	each(p.consumers, func(c ops.Consumer, name string, worker uuid.UUID) {
		switch {
		case lives[worker]:
		case able[partition.Consumer(name)]:
			unassigned = append(unassigned, name)
		default:
			without = append(without, name)
		}
	})
	switch {
	case len(without) > 0 && len(lives) == 0: // to retire what all workers have code for would be a mistake
		return fail("start the workers", "no worker lives to run: %s", list(without)), nil
	case len(without) > 0:
		return fail("deploy a worker that has their code, or retire them", "no worker has code for: %s", list(without)), nil
	case len(unassigned) > 0:
		return warn("run it again in half a minute; then see the leader's log", "no living worker runs: %s", list(unassigned)), nil
	case len(beginning) > 0:
		return warn("let the transactions end that hold them back, see pgfrontier blocked", "they wait to begin at the head: %s", list(beginning)), nil
	}
	return ok("each consumer is run"), nil
}

// versions finds projections whose effects several versions have, or no version.
func (p *patient) versions(context.Context) (finding, error) {
	of := map[string][]string{}
	for _, c := range p.consumers {
		if c.Scope == nil || c.Scope.Projection == "" || c.RenamedTo != "" {
			continue
		}
		act := of[c.Scope.Projection]
		if !c.Shadow {
			act = append(act, c.Name)
		}
		of[c.Scope.Projection] = act
	}
	var twice, none []string
	for _, projection := range slices.Sorted(maps.Keys(of)) {
		switch all := of[projection]; len(all) {
		case 0:
			none = append(none, projection)
		case 1:
		default:
			twice = append(twice, projection+": "+strings.Join(all, " and "))
		}
	}
	switch {
	case len(twice) > 0:
		return fail("deploy without the versions that readers do not use, pgfrontier retire them, then deploy the next version again: it begins as a shadow", "several versions of a projection have effects: %s", list(twice)), nil
	case len(none) > 0:
		return warn("see that the consumer that has them is deployed with its Projection; if there is none, pgfrontier retire a shadow and pgfrontier begin it", "no version that declares the projection has its effects: %s", list(none)), nil
	}
	return ok("%d projections, each with the effects of one version", len(of)), nil
}

// partitions finds consumers whose number of partitions the workers do not agree on.
func (p *patient) partitions(context.Context) (finding, error) {
	var apart, numbers []string
	for _, c := range p.consumers {
		says, number := p.disagreement(c), max(len(c.Units), 1)
		switch {
		case says != "":
			apart = append(apart, c.Name+": "+says)
		case demand.Becoming(c) > 0:
			numbers = append(numbers, fmt.Sprintf("%s is in %d, to become %d", c.Name, number, demand.Becoming(c)))
		case number > 1 || c.Fixed > 0:
			numbers = append(numbers, fmt.Sprintf("%s is in %d", c.Name, number))
		}
	}
	switch {
	case len(apart) > 0:
		return warn("deploy the code that is wanted everywhere, or pgfrontier partition NAME N: docs/guide.md, The number", "%s", list(apart)), nil
	case len(numbers) > 0:
		return ok("%s", list(numbers)), nil
	}
	return ok("no consumer is in partitions"), nil
}

// disagreement says which builds do not run a consumer as others select more, or who keeps it
// from the number of partitions that is wanted.
func (v view) disagreement(c ops.Consumer) string {
	place := func(w ops.Worker) string { return v.place(w.ID) }
	return cmp.Or(demand.Waiting(c, v.living(), place), demand.Disagreement(c, v.living(), place))
}

// each calls do for each consumer, or of one that is split for its units. It leaves out what a rename
// has left.
func each(all []ops.Consumer, do func(c ops.Consumer, name string, worker uuid.UUID)) {
	for _, c := range all {
		if len(c.Units) == 0 && c.RenamedTo == "" {
			do(c, c.Name, c.Worker)
		}
		for _, u := range c.Units {
			do(c, u.Name, u.Worker)
		}
	}
}

func (p *patient) lateOnes(context.Context) (finding, error) {
	if late := p.late(p.maxAge); len(late) > 0 {
		return fail("pgfrontier consumer NAME shows its next event and its last error", "%s", list(late)), nil
	}
	return ok("no event has waited for longer than %s", short(p.maxAge)), nil
}

func (p *patient) failures(context.Context) (finding, error) {
	var all, remedies []string
	var failing []alarms.UnitError
	for _, w := range p.living() {
		failing = append(failing, alarms.UnitErrors(w.Status)...)
	}
	for _, s := range alarms.Share(failing) {
		if !slices.ContainsFunc(p.consumers, func(c ops.Consumer) bool { return c.Name == s.Consumer }) {
			continue // it was retired
		}
		all = append(all, s.Name()+": "+s.Message())
		if remedy := s.Remedy(); !slices.Contains(remedies, remedy) {
			remedies = append(remedies, remedy)
		}
	}
	switch {
	case len(remedies) == 1:
		return warn(remedies[0], "%s", list(all)), nil
	case len(remedies) > 1: // which is whose, only the error tells
		return warn("do what each error says; pgfrontier skip helps only against a handler's error that is the event's fault, and neither against a right nor a table that is missing", "%s", list(all)), nil
	}
	return ok("no consumer has one"), nil
}

func (p *patient) pausedOnes(context.Context) (finding, error) {
	var all []string
	remedy := "pgfrontier resume NAME"
	note := func(name string, pause *ops.Pause) {
		if pause == nil {
			return
		}
		all = append(all, fmt.Sprintf("%s by %s (%s)", name, pause.By.Operator, pause.By.Reason))
		if strings.HasPrefix(pause.By.Operator, "worker ") { // FailPause
			remedy = "mend what the error says, or pgfrontier skip NAME POSITION if the event shall never be handled; then pgfrontier resume NAME"
		}
		if lacksRight(pause.By.Reason) {
			remedy = "GRANT what the error names to the workers' role, then pgfrontier resume NAME"
		}
	}
	for _, c := range p.consumers {
		if len(c.Units) == 0 && c.RenamedTo == "" {
			note(c.Name, c.Paused)
		}
		for _, u := range c.Units {
			note(u.Name, u.Paused)
		}
	}
	if len(all) > 0 {
		return warn(remedy, "%s", list(all)), nil
	}
	return ok("none"), nil
}

// lacksRight reports whether an error that was stored is one of a missing right.
func lacksRight(text string) bool {
	return strings.Contains(text, "SQLSTATE "+pgdriver.InsufficientPrivilege) || strings.Contains(text, "permission denied for ")
}

// oneLacksRight returns the first of some errors that is one of a missing right. The query has them
// in one column.
func (p *patient) oneLacksRight(ctx context.Context, query string) (text string, err error) {
	const most = 10_000
	err = p.db.QueryRowContext(ctx, `
SELECT coalesce((SELECT e.error FROM (`+query+` LIMIT $1::int) AS e(error)
	WHERE strpos(e.error, 'SQLSTATE `+pgdriver.InsufficientPrivilege+`') > 0 OR strpos(e.error, 'permission denied for ') > 0 LIMIT 1), '')`, most).Scan(&text)
	return errtext.Line(text), err
}

func (p *patient) letters(ctx context.Context) (finding, error) {
	var all []string
	for _, c := range p.consumers {
		if c.DeadLetters > 0 {
			all = append(all, fmt.Sprintf("%s has %d", c.Name, c.DeadLetters))
		}
	}
	if len(all) == 0 {
		return ok("none"), nil
	}
	denied, err := p.oneLacksRight(ctx, `SELECT error FROM `+p.t.DeadLetters.SQL())
	switch {
	case err != nil:
		return finding{}, err
	case denied != "":
		return warn("GRANT what the error names to the workers' role, then pgfrontier letters retry NAME", "%s; one says: %s", list(all), denied), nil
	}
	return warn("pgfrontier letters list NAME, then letters retry or letters discard", "%s", list(all)), nil
}

func (p *patient) ranges(context.Context) (finding, error) {
	var all []string
	note := func(name string, open int64, owner uuid.UUID) {
		if limit := p.mostRanges(owner); float64(open) > manyRanges*float64(limit) {
			all = append(all, fmt.Sprintf("%s has %d of %d", name, open, limit))
		}
	}
	for _, c := range p.consumers {
		if len(c.Units) == 0 {
			note(c.Name, c.OpenRanges, c.Worker)
		}
		for _, u := range c.Units {
			note(u.Name, u.OpenRanges, u.Worker)
		}
	}
	if len(all) > 0 {
		return warn("pgfrontier blocked, then end what is open; at WithMaxOpenRanges a consumer waits", "many ranges of positions are in doubt: %s", list(all)), nil
	}
	return ok("few ranges"), nil
}

// mostRanges is what WithMaxOpenRanges of a worker is, as it told; its default if it has
// not told, or there is no such worker.
func (p *patient) mostRanges(id uuid.UUID) int64 {
	for _, w := range p.workers {
		var said struct{ MaxOpenRanges int64 }
		_ = json.Unmarshal(w.Status, &said) // of another library it may be anything
		if w.ID == id && said.MaxOpenRanges > 0 {
			return said.MaxOpenRanges
		}
	}
	return int64(worker.DefaultConfig().MaxOpenRanges)
}

// jobsTables need not be there.
func (p *patient) jobsTables(ctx context.Context) (finding, error) {
	there, err := p.haveJobs(ctx)
	if err != nil {
		return finding{}, err
	}
	if !there {
		return ok("there are no tables of jobs"), nil
	}
	return versionOf(migrations.CheckJobs(ctx, p.db, &migrations.Config{Names: p.names}), migrations.JobsVersion, "pgfrontier migrate up --jobs")
}

// haveJobsOnly reports whether there are tables of jobs, and none of consumers.
func (p *patient) haveJobsOnly(ctx context.Context) (only bool, err error) {
	if only, err = p.haveJobs(ctx); only {
		err = p.db.QueryRowContext(ctx, `SELECT to_regclass($1::text) IS NULL`, p.t.Checkpoints.SQL()).Scan(&only)
	}
	return only, err
}

func (p *patient) haveJobs(ctx context.Context) (there bool, err error) {
	t, err := tables.ParseJobs(p.names)
	if err == nil {
		err = p.db.QueryRowContext(ctx, `SELECT to_regclass($1::text) IS NOT NULL`, t.Jobs.SQL()).Scan(&there)
	}
	return there, err
}

// jobWorkers finds workers of jobs, which have a table of their own. It misses them while
// jobs are due.
func (p *patient) jobWorkers(ctx context.Context) (finding, error) {
	if there, err := p.haveJobs(ctx); !there {
		return ok("none"), err
	}
	queues, err := p.jobs.Queues(ctx) // first: a worker that starts meanwhile is seen
	if err != nil {
		return finding{}, err
	}
	var v view
	if v.workers, err = p.jobs.Workers(ctx); err != nil {
		return finding{}, err
	}
	dead, waiting, lost := v.silentOnes(), p.overdue(queues), v.lostSlots()
	switch {
	case len(v.living()) == 0 && len(waiting) > 0:
		return fail("start the workers of jobs", "no worker of jobs lives, and jobs are due: %s", list(waiting)), nil
	case len(dead) > 0:
		return warn(silentRemedy, "no heartbeat for long: %s", list(dead)), nil
	case len(lost) > 0:
		return warn("make the handlers return when their context ends, and start these processes again: until then the slots are lost", "handlers that were given up still run: %s", list(lost)), nil
	}
	return ok("%d live", len(v.living())), nil
}

// lostSlots says which living workers of jobs have slots that handlers keep which were given up.
func (v view) lostSlots() (all []string) {
	for _, w := range v.living() {
		for _, lost := range alarms.LostSlots(w.Status) {
			all = append(all, placeOf(w)+" "+lost)
		}
	}
	return all
}

// jobErrors are what workers of jobs complain of.
func (p *patient) jobErrors(ctx context.Context) (finding, error) {
	if there, err := p.haveJobs(ctx); !there {
		return ok("none"), err
	}
	workers, err := p.jobs.Workers(ctx)
	if err != nil {
		return finding{}, err
	}
	var all []string
	for _, w := range (view{workers: workers}).living() {
		for _, c := range alarms.JobWorkerErrors(w.Status) {
			all = append(all, placeOf(w)+": "+c.Part+": "+c.Text)
		}
	}
	if len(all) > 0 {
		return fail("do what the error says; if a right is missing, GRANT it to the workers' role, as pgfrontier migrate grants --jobs prints it", "%s", list(all)), nil
	}
	return ok("no worker of jobs has one"), nil
}

// overdue are the queues that are not paused and whose jobs have been due for long.
func (p *patient) overdue(all []ops.Queue) (waiting []string) {
	for _, q := range all {
		switch {
		case q.Paused != nil && q.Name == ops.AllQueues:
			return nil
		case q.Paused == nil && q.OldestDue > p.maxAge && q.Name != ops.AllQueues:
			waiting = append(waiting, fmt.Sprintf("%s for %s", q.Name, short(q.OldestDue)))
		}
	}
	return waiting
}

func (p *patient) queues(ctx context.Context) (finding, error) {
	if there, err := p.haveJobs(ctx); !there {
		return ok("none"), err
	}
	all, err := p.jobs.Queues(ctx)
	if err != nil {
		return finding{}, err
	}
	var paused []string
	for _, q := range all {
		if q.Paused != nil {
			paused = append(paused, fmt.Sprintf("%s by %s (%s)", q.Name, q.Paused.By.Operator, q.Paused.By.Reason))
		}
	}
	waiting := p.overdue(all)
	switch {
	case len(paused) > 0:
		return warn("pgfrontier jobs resume QUEUE", "paused: %s", list(paused)), nil
	case len(waiting) > 0:
		return warn("pgfrontier jobs list --state available; see that a worker of the queue runs and has handlers for their kinds, and whether a cap or jobs of higher priority keep them", "jobs are due and do not run: %s", list(waiting)), nil
	}
	return ok("none is paused, and no job is overdue"), nil
}

// unserved finds queues and flows that no worker does anything about. A worker that has
// just started may not have said yet what it does.
func (p *patient) unserved(ctx context.Context) (finding, error) {
	if there, err := p.haveJobs(ctx); !there {
		return ok("none"), err
	}
	queues, err := p.jobs.Unserved(ctx)
	if err != nil {
		return finding{}, err
	}
	unadvanced, err := p.jobs.Unadvanced(ctx)
	switch {
	case err != nil:
		return finding{}, err
	case len(queues) > 0:
		return warn("run it again in some seconds; then start a worker that has them, by WithQueue", "jobs are due, and no worker serves their queues: %s", list(queues)), nil
	case unadvanced:
		return warn("run it again in some seconds; then give flow.Advance() to the workers", "runs of flows have not ended, and no worker advances them"), nil
	}
	return ok("each queue with due jobs has a worker, and so have flows"), nil
}

// failedJobs wait for a person, as dead letters do, until somebody has acknowledged them.
func (p *patient) failedJobs(ctx context.Context) (finding, error) {
	if there, err := p.haveJobs(ctx); !there {
		return ok("none"), err
	}
	all, err := p.jobs.Queues(ctx)
	if err != nil {
		return finding{}, err
	}
	var failed []string
	for _, q := range all {
		if q.Unacknowledged > 0 && q.Name != ops.AllQueues {
			failed = append(failed, fmt.Sprintf("%s has %v", q.Name, q.Unacknowledged))
		}
	}
	if len(failed) == 0 {
		return ok("none"), nil
	}
	t, err := tables.ParseJobs(p.names)
	if err != nil {
		return finding{}, err
	}
	denied, err := p.oneLacksRight(ctx, `SELECT error FROM `+t.History.SQL()+` WHERE state = 'failed' AND acknowledged_at IS NULL`)
	switch {
	case err != nil:
		return finding{}, err
	case denied != "":
		return warn("GRANT what the error names to the workers' role, then pgfrontier jobs retry", "%s; one says: %s", list(failed), denied), nil
	}
	return warn("pgfrontier jobs list --state failed, then jobs retry, or jobs flows retry for a step of a flow; then jobs discard, or jobs acknowledge once they were seen", "%s", list(failed)), nil
}

func (p *patient) schedules(ctx context.Context) (finding, error) {
	if there, err := p.haveJobs(ctx); !there {
		return ok("none"), err
	}
	all, err := p.jobs.Schedules(ctx)
	if err != nil {
		return finding{}, err
	}
	var overdue, paused []string
	for _, s := range all {
		if s.Overdue > p.maxAge {
			overdue = append(overdue, fmt.Sprintf("%s since %s", s.Name, short(s.Overdue)))
		}
		if s.Paused != nil {
			paused = append(paused, s.Name+" "+pausedSince(*s.Paused))
		}
	}
	switch {
	case len(overdue) > 0:
		says := "overdue: " + list(overdue)
		if len(paused) > 0 {
			says += "; " + list(paused)
		}
		return warn("start a process that has them, or see its log for why the job cannot be enqueued; jobs retire SCHEDULE forgets one that no program has any more", "%s", says), nil
	case len(paused) > 0:
		return warn("pgfrontier jobs resume SCHEDULE --schedule", "%s", list(paused)), nil
	}
	return ok("none is paused, and none is overdue"), nil
}

const firstOnes = 5 // of a list

// list names the first ones.
func list(all []string) string {
	if more := len(all) - firstOnes; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:firstOnes], "; "), more)
	}
	return strings.Join(all, "; ")
}
