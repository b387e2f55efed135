package receipt_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/pgfrontier/worker/internal/partition"
	"github.com/pgfrontier/worker/internal/receipt"
	"github.com/pgfrontier/worker/internal/scope"
	"github.com/pgfrontier/worker/store"
)

// model is a consumer that handles a drawn log, with the receipts that it leaves.
type model struct {
	log     []receipt.LogEvent // with the true slots
	late    map[int64]bool     // events that have not appeared yet
	lost    map[int64]bool     // events that are not handled, though they are passed
	units   []*part
	regions []receipt.Covered
	singles []receipt.Single
	waiting map[int64]bool
	selects *scope.Scope
}

type part struct {
	receipt.Unit
	region *receipt.Region
}

func drawModel(t *rapid.T) *model {
	m := &model{late: map[int64]bool{}, waiting: map[int64]bool{}, selects: &scope.Scope{Types: []string{"a"}}}
	position := int64(0)
	for range rapid.IntRange(1, 60).Draw(t, "events") {
		position += rapid.Int64Range(1, 3000).Draw(t, "step")
		e := receipt.LogEvent{Type: rapid.SampledFrom([]string{"a", "a", "b"}).Draw(t, "type"), Slot: rapid.IntRange(0, partition.Slots-1).Draw(t, "slot")}
		e.Position, e.ID = position, uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		m.log = append(m.log, e)
		m.late[position] = rapid.IntRange(0, 9).Draw(t, "late") == 0
	}
	m.units = []*part{{Unit: receipt.Unit{Slots: partition.All}}}
	return m
}

func (m *model) head() int64 { return m.log[len(m.log)-1].Position }

// pass moves a unit, and hands it the events of its keys, except those that are lost.
func (m *model) pass(u *part, to int64) {
	var events []receipt.Event
	for _, e := range m.log {
		switch in := u.Position < e.Position && e.Position <= to; {
		case in && m.late[e.Position]:
			u.Open = append(u.Open, store.Range{First: e.Position, Last: e.Position})
		case in && u.Slots.Has(e.Slot) && e.Type == "a" && !m.lost[e.Position] && !m.waiting[e.Position]:
			events = append(events, e.Event)
		}
	}
	m.take(u, to, events)
}

func (m *model) take(u *part, to int64, events []receipt.Event) {
	region, rows := u.region.Pass(u.Position, to, events)
	u.region, u.Position = &region, to
	for _, r := range rows {
		if r.Event != nil {
			m.singles = append(m.singles, receipt.Single{Event: receipt.Event{Position: r.First, ID: *r.Event}, Slots: u.Slots})
			continue
		}
		m.ended(u, r.Region)
	}
}

func (m *model) ended(u *part, r receipt.Region) {
	m.regions = append(m.regions, receipt.Covered{Region: r, Slots: u.Slots, Scope: m.selects})
}

// catchUp handles the late events that a unit has passed, as far as they have appeared.
func (m *model) catchUp(u *part) {
	u.Open = slices.DeleteFunc(u.Open, func(r store.Range) bool { return !m.late[r.First] && m.deliver(u, r.First) })
}

func (m *model) deliver(u *part, position int64) bool {
	i := slices.IndexFunc(m.log, func(e receipt.LogEvent) bool { return e.Position == position })
	if e := m.log[i]; u.Slots.Has(e.Slot) && e.Type == "a" && !m.waiting[position] {
		m.take(u, u.Position, []receipt.Event{e.Event})
	}
	return true
}

// appear lets all late events appear.
func (m *model) appear() {
	clear(m.late)
	for _, u := range m.units {
		m.catchUp(u)
	}
}

func (m *model) rescale(t *rapid.T) {
	for _, u := range m.units { // all stand at one position, with the same doubts
		m.pass(u, slices.MaxFunc(m.units, func(a, b *part) int { return int(a.Position - b.Position) }).Position)
	}
	for _, u := range m.units {
		m.catchUp(u)
	}
	at, open := m.units[0].Position, m.units[0].Open
	for _, u := range m.units {
		if u.region != nil {
			m.ended(u, *u.region)
		}
	}
	var units []*part
	for _, slots := range partition.Cut(rapid.IntRange(1, 4).Draw(t, "parts")) {
		units = append(units, &part{Unit: receipt.Unit{Slots: slots, Position: at, Open: slices.Clone(open)}})
	}
	m.units = units
}

// run moves all units to the head, in drawn steps.
func (m *model) run(t *rapid.T) {
	for range rapid.IntRange(0, 30).Draw(t, "steps") {
		u := m.units[rapid.IntRange(0, len(m.units)-1).Draw(t, "unit")]
		switch rapid.IntRange(0, 9).Draw(t, "what") {
		case 0:
			m.rescale(t)
		case 1:
			m.catchUp(u)
		case 2:
			m.late[rapid.SampledFrom(m.log).Draw(t, "appears").Position] = false
		default:
			m.pass(u, min(u.Position+rapid.Int64Range(0, 20_000).Draw(t, "by"), m.head()))
		}
	}
	for _, u := range m.units {
		m.pass(u, m.head())
	}
}

func (m *model) judge(keyed bool) (*receipt.Judge, []receipt.Finding) {
	var units []receipt.Unit
	regions := slices.Clone(m.regions)
	for _, u := range m.units {
		units = append(units, u.Unit)
		if u.region != nil {
			regions = append(regions, receipt.Covered{Region: *u.region, Slots: u.Slots, Scope: m.selects, Ended: time.Now()})
		}
	}
	j := receipt.NewJudge(units, regions, m.singles, m.waiting, nil)
	for _, e := range m.log {
		if m.late[e.Position] {
			continue
		}
		if keyed {
			e.Slot = -1
		}
		j.Add(e)
	}
	return j, j.Findings()
}

// What a consumer without a fault has handled is proven, whatever the batches, the units, late events
// and dead letters are. With its own key that holds where all units are at one position.
func TestJudgeProves(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := drawModel(t)
		for _, e := range m.log {
			m.waiting[e.Position] = e.Type == "a" && rapid.IntRange(0, 14).Draw(t, "dead letter") == 0
		}
		m.run(t)
		for _, u := range m.units {
			if rapid.Bool().Draw(t, "caught up") {
				m.catchUp(u)
			}
		}
		j, found := m.judge(false)
		events := 0
		for _, e := range m.log {
			if e.Type == "a" && !m.late[e.Position] && !m.waiting[e.Position] && !slices.ContainsFunc(m.units, func(u *part) bool {
				return u.Slots.Has(e.Slot) && slices.ContainsFunc(u.Open, func(r store.Range) bool { return r.First == e.Position })
			}) {
				events++
			}
		}
		if len(found) > 0 || j.Events != int64(events) {
			t.Fatalf("proven: %d of %d events, found %+v", j.Events, events, found)
		}
		m.appear()
		if _, found := m.judge(true); len(found) > 0 {
			t.Fatalf("with a key: %+v", found)
		}
	})
}

// One event that is lost, handled twice, or deleted from the log afterwards is found, with its position.
func TestJudgeFindsOneEvent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := drawModel(t)
		m.log[0].Type, m.late[m.log[0].Position] = "a", false
		victim := rapid.SampledFrom(slices.DeleteFunc(slices.Clone(m.log), func(e receipt.LogEvent) bool { return e.Type != "a" })).Draw(t, "victim")
		kind := rapid.SampledFrom([]string{"lost", "twice", "deleted"}).Draw(t, "kind")
		if kind == "lost" {
			m.late[victim.Position], m.lost = false, map[int64]bool{victim.Position: true}
		}
		m.run(t)
		m.appear()
		want := int64(1)
		switch kind {
		case "lost":
			want = -1
		case "twice":
			for _, u := range m.units {
				if u.Slots.Has(victim.Slot) {
					m.take(u, u.Position, []receipt.Event{victim.Event})
				}
			}
		case "deleted":
			m.log = slices.DeleteFunc(m.log, func(e receipt.LogEvent) bool { return e.Position == victim.Position })
		}
		_, found := m.judge(rapid.Bool().Draw(t, "keyed"))
		if len(found) != 1 || found[0].Fault != receipt.Differs || found[0].Diff.Events != want || !found[0].Is(victim.Event) {
			t.Fatalf("%s %d: found %+v", kind, victim.Position, found)
		}
		if at, ok := found[0].One(); !ok || at != victim.Position {
			t.Fatalf("%s %d: found at %d", kind, victim.Position, at)
		}
	})
}

// A checkpoint that was raised or lowered by hand is found, with the positions.
func TestJudgeFindsMovedCheckpoints(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := drawModel(t)
		clear(m.late)
		m.run(t)
		u := m.units[rapid.IntRange(0, len(m.units)-1).Draw(t, "unit")]
		was := u.Position
		u.Position = max(u.region.First, was+rapid.Int64Range(-5000, 5000).Draw(t, "by"))
		if u.Position == was {
			u.Position++
		}
		raised, to := u.Position > was, u.Position
		check := func(when string, fault receipt.Fault) {
			_, found := m.judge(false)
			want := store.Range{First: min(was, to) + 1, Last: max(was, to)}
			if len(found) == 0 || slices.ContainsFunc(found, func(f receipt.Finding) bool { return f.Fault != fault || f.Range != want }) {
				t.Fatalf("from %d to %d, %s: found %+v, want %v of %v", was, to, when, found, fault, want)
			}
		}
		if raised {
			check("raised", receipt.Uncovered)
			m.pass(u, to+10)
			check("raised, and gone on", receipt.Uncovered)
			return
		}
		check("lowered", receipt.Ahead)
		m.pass(u, was)
		check("lowered, and gone on", receipt.Twice)
	})
}

// An operator may skip a part over an event of another part.
func TestJudgeOfSkippedParts(t *testing.T) {
	t.Parallel()
	for _, keyed := range []bool{false, true} {
		m := &model{selects: &scope.Scope{}, log: []receipt.LogEvent{{Event: receipt.Event{Position: 1, ID: uuid.New()}, Type: "a", Slot: 4000}}}
		m.units = []*part{{Unit: receipt.Unit{Slots: partition.Range{First: 0, Last: 2047}}}, {Unit: receipt.Unit{Slots: partition.Range{First: 2048, Last: 4095}}}}
		m.take(m.units[0], 1, nil)
		m.singles = append(m.singles, receipt.Single{Event: m.log[0].Event, Slots: m.units[0].Slots, Unsure: keyed})
		m.pass(m.units[1], 1)
		if j, found := m.judge(keyed); len(found) > 0 || j.Events != 1 {
			t.Errorf("keyed %v: of %d events, found %+v", keyed, j.Events, found)
		}
	}
}

// With its own key, the parts of a consumer are judged up to the stretch of the lowest.
func TestJudgeUntilTheLowestPart(t *testing.T) {
	t.Parallel()
	for _, last := range []int64{10, 20_000} {
		m := &model{selects: &scope.Scope{}}
		for _, position := range []int64{1, last - 1, last} {
			e := receipt.LogEvent{Event: receipt.Event{Position: position, ID: uuid.New()}, Type: "a", Slot: 4000}
			m.log = append(m.log, e)
		}
		m.units = []*part{{Unit: receipt.Unit{Slots: partition.Range{First: 0, Last: 2047}}}, {Unit: receipt.Unit{Slots: partition.Range{First: 2048, Last: 4095}}}}
		m.pass(m.units[0], last-2)
		m.pass(m.units[1], last)
		var units []receipt.Unit
		for _, u := range m.units {
			m.ended(u, *u.region)
			units = append(units, u.Unit)
		}
		j := receipt.NewJudge(units, m.regions, nil, nil, nil)
		until := j.Until(last - 2)
		for _, e := range m.log {
			if e.Slot = -1; e.Position <= j.To() {
				j.Add(e)
			}
		}
		if found := j.Findings(); len(found) > 0 || until > last-2 || j.Events != min(until, 1) {
			t.Errorf("up to %d: %d events until %d, found %+v", last, j.Events, until, found)
		}
	}
}
