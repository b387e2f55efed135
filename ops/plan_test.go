package ops_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

// declared is a consumer of a build that is to be planned.
type declared struct {
	name    string
	types   []string
	version int
	start   consumer.Start
	parts   consumer.Partitions

	projection string
}

func (d *declared) Name() string                                                { return d.name }
func (d *declared) Handle(context.Context, *sql.Tx, store.PersistedEvent) error { return nil }
func (d *declared) AggregateTypes() []string                                    { return d.types }
func (d *declared) Version() int                                                { return d.version }
func (d *declared) StartAt() consumer.Start                                     { return d.start }
func (d *declared) Partitions() consumer.Partitions                             { return d.parts }
func (d *declared) Projection() string                                          { return d.projection }
func byCustomer(n int) consumer.Partitions {
	return consumer.Partitions{Count: n, Key: consumer.ByKey("customer", customerOf)}
}
func customerOf(e store.PersistedEvent) string { return e.AggregateID }

// describe returns the manifest of a build. A consumer without a number has one partition.
func describe(t *testing.T, all ...*declared) []byte {
	t.Helper()
	var consumers []consumer.Consumer
	for _, d := range all {
		d.parts.Count = max(d.parts.Count, 1)
		consumers = append(consumers, d)
	}
	text, err := worker.Describe(consumers)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Plan says for each consumer what the build changes, and writes nothing.
func TestPlan(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 9)
	at := func(name string, scope any, more string) {
		s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position, scope) VALUES ($1, 7, $2)`, name, scope)
		if more != "" {
			s.Exec(t, `UPDATE consumer_checkpoints SET `+more+` WHERE consumer_name = $1`, name)
		}
	}
	split := `split_at = now(), paused_at = now(), paused_by = 'partitions', paused_reason = 'split'`
	for _, name := range []string{"same", "wider", "all", "narrower", "version", "older", "start", "fixed", "split into more", "gone", "foreign", "unowned", "before", "q1"} {
		at(name, `{"types": ["Order"], "version": 1}`, "")
	}
	at("unknown", nil, "")
	at("renamed", nil, "")
	for _, name := range []string{"parts", "key"} {
		at(name, nil, split)
		for _, unit := range []string{"000-7ff", "800-fff"} {
			at(name+"#"+unit, `{"types": ["Order"], "version": 1}`, `partition_key = 'customer'`)
		}
	}
	s.Exec(t, `UPDATE consumer_checkpoints SET partitions = 1 WHERE consumer_name = 'fixed'`)
	if err := s.Rename(t.Context(), "before", "after", by); err != nil {
		t.Fatal(err)
	}
	if err := s.Shadow(t.Context(), "shadow", by); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, `INSERT INTO worker_nodes (worker_id, consumers, partitions) VALUES (gen_random_uuid(), '{same,gone}', '{}'), (gen_random_uuid(), '{foreign}', '{}')`)
	orders := func(name string) *declared { return &declared{name: name, types: []string{"Order"}, version: 1} }
	build := []*declared{
		orders("same"), orders("unknown"), orders("shadow"), orders("before"), orders("after"),
		{name: "wider", types: []string{"Order", "Invoice"}, version: 1}, {name: "all", version: 1}, {name: "narrower", types: []string{"Invoice"}, version: 2},
		{name: "version", types: []string{"Order"}, version: 2}, {name: "older", types: []string{"Order"}},
		{name: "start", types: []string{"Order"}, version: 1, start: consumer.AtHead()},
		{name: "fixed", types: []string{"Order"}, version: 1, parts: consumer.Partitions{Count: 8}},
		{name: "split into more", types: []string{"Order"}, version: 1, parts: consumer.Partitions{Count: 8}},
		{name: "parts", types: []string{"Order"}, version: 1, parts: byCustomer(3)}, {name: "key", types: []string{"Order"}, version: 1, parts: consumer.Partitions{Count: 2}},
		{name: "new"}, {name: "new at head", start: consumer.AtHead(), parts: byCustomer(4)}, {name: "new after", types: []string{"Order"}, start: consumer.After(5)},
		{name: "p1", projection: "p"}, {name: "p2", projection: "p"}, {name: "q1", types: []string{"Order"}, version: 1, projection: "q"}, {name: "q0", projection: "q"},
	}
	const first, waits, givenUp = "runs first: workers of the present build wait for it", "waits while a worker of the present build lives", "events of %s up to position 7 are not delivered: ReplayTypes delivers them"
	want := map[string]string{ // ! marks a change
		"same": "", "after": "",
		"unknown":         "the database does not know what its present code selects",
		"shadow":          "is a shadow: another consumer has the effects of its events, until a Switch|the database does not know what its present code selects",
		"before":          `!handles no event: the consumer was renamed to "after"`,
		"wider":           "!selects Invoice, Order (version 1), and selected Order (version 1)|" + fmt.Sprintf(givenUp, "Invoice") + "|" + first,
		"all":             "!selects all types (version 1), and selected Order (version 1)|" + fmt.Sprintf(givenUp, "the added types") + "|" + first,
		"narrower":        "!selects Invoice (version 2), and selected Order (version 1)|" + fmt.Sprintf(givenUp, "Invoice") + "|" + first,
		"version":         "!selects Order (version 2), and selected Order (version 1)|" + first,
		"older":           "!selects Order, and selected Order (version 1)|" + waits,
		"start":           "its start at the head of the log is ignored: it continues at position 7",
		"fixed":           "its demand of 8 partitions is ignored, since an operator has fixed 1",
		"split into more": "!has 8 partitions, and had 1",
		"parts":           "!has 3 partitions, and had 2",
		"key":             "!stands still: it is split by the key customer, and this build splits it by the aggregate's id: first deploy Count 1 with the old key",
		"new":             "!new: begins at the first event, and selects all types",
		"new at head":     "!new: begins at the head of the log, and selects all types|is split into 4 partitions by the key customer",
		"new after":       "!new: begins after position 5, and selects Order",
		"p1":              "!new: begins at the first event, and selects all types, as a version of projection p",
		"p2":              `!new: begins at the first event, and selects all types, as a version of projection p|is a shadow: "p1" has the effects of its events, until a Switch`,
		"q0":              `!new: begins at the first event, and selects all types, as a version of projection q|is a shadow: "q1" has the effects of its events, until a Switch`,
		"q1":              "!selects Order (version 1), as a version of projection q, and selected Order (version 1)|" + first,
		"gone":            "!has no code in this build: it stands still at position 7 until Retire removes it",
		"foreign":         "is not of this build, and another program runs it",
		"unowned":         "has no code in this build, and no worker has code for it now",
		"renamed":         "has no code in this build, and no worker has code for it now",
	}
	scan := func(query string, into ...any) { s.scan(t, query, into...) }
	before := dump(t, scan, consumerTables...)
	all, err := s.Plan(t.Context(), describe(t, build...))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		says := strings.Join(p.Says, "|")
		if p.Changes {
			says = "!" + says
		}
		if says != want[p.Consumer] {
			t.Errorf("%s:\n%s, want\n%s", p.Consumer, says, want[p.Consumer])
		}
		delete(want, p.Consumer)
	}
	if len(want) > 0 {
		t.Errorf("nothing is said of %v", want)
	}
	if after := dump(t, scan, consumerTables...); after != before {
		t.Errorf("it wrote\n%s\nfor\n%s", after, before)
	}
	if _, err := s.Plan(t.Context(), []byte("{}")); !errors.Is(err, ops.ErrInvalid) {
		t.Errorf("of no build: %v", err)
	}
	if _, err := worker.Describe(nil); !errors.Is(err, worker.ErrInvalidConfig) {
		t.Errorf("of no consumer: %v", err)
	}
}

// What Plan says of a build is what its worker then does.
func TestPlanIsWhatHappens(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.append(t, "a", 3)
	for _, c := range []struct {
		build *declared
		says  string
		rows  int64 // of checkpoints
		scope string
	}{
		{&declared{name: "c", types: []string{"Order"}}, "new: begins at the first event, and selects Order", 1, `{"types": ["Order"]}`},
		{&declared{name: "c", types: []string{"Order", "Other"}}, "selects Order, Other, and selected Order", 1, `{"types": ["Order", "Other"]}`},
		{&declared{name: "c", types: []string{"Order", "Other"}, parts: consumer.Partitions{Count: 3}}, "has 3 partitions, and had 1", 3, `{"types": ["Order", "Other"]}`},
		{&declared{name: "c", types: []string{"Order", "Other"}, version: 2, parts: consumer.Partitions{Count: 3}}, "selects Order, Other (version 2), and selected Order, Other", 3, `{"types": ["Order", "Other"], "version": 2}`},
		{&declared{name: "c", types: []string{"Order"}, version: 2}, "selects Order (version 2), and selected Order, Other (version 2)", 1, `{"types": ["Order"], "version": 2}`},
	} {
		text := describe(t, c.build)
		all, err := s.Plan(t.Context(), text)
		if err != nil || len(all) != 1 || !all[0].Changes || !strings.Contains(strings.Join(all[0].Says, "|"), c.says) {
			t.Fatalf("%+v, %v; want %q", all, err, c.says)
		}
		stop := s.work(t, c.build)
		await(t, c.says, func() bool {
			return s.count(t, `SELECT count(*) FROM consumer_checkpoints WHERE split_at IS NULL AND last_position = 3 AND scope = '`+c.scope+`'::jsonb`) == c.rows &&
				s.count(t, `SELECT count(*) FROM consumer_checkpoints WHERE split_at IS NULL`) == c.rows
		})
		if all, err := s.Plan(t.Context(), text); err != nil || all[0].Changes || len(all[0].Says) > 0 {
			t.Errorf("afterwards: %+v, %v", all, err)
		}
		stop()
	}
}
