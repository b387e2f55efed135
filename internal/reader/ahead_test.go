package reader

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pgfrontier/worker/frontier"
	"github.com/pgfrontier/worker/store"
)

// plainConns lends connections to logs in memory.
type plainConns struct{ OwnConn }

func (c plainConns) Take(context.Context) (OwnConn, error) { return c, nil }

func (plainConns) Bounded(ctx context.Context, read func(ctx context.Context) error) error {
	return read(ctx)
}

func (plainConns) GiveBack(error) {}

// longLog has an event at each position up to last, except each tenth. A read can be delayed
// and can fail.
type longLog struct {
	store.Log
	last    int64
	payload int
	reads   *atomic.Int64
	before  func(ctx context.Context) error
}

func newLongLog(last int64, payload int) longLog {
	return longLog{last: last, payload: payload, reads: new(atomic.Int64), before: func(context.Context) error { return nil }}
}

func (l longLog) ReadEvents(ctx context.Context, _ store.Querier, after int64, limit int) (events []store.PersistedEvent, err error) {
	l.reads.Add(1)
	if err := l.before(ctx); err != nil {
		return nil, err
	}
	for p := after + 1; p <= l.last && len(events) < limit; p++ {
		if p%10 != 0 {
			events = append(events, store.PersistedEvent{GlobalPosition: p, AggregateType: "A", Payload: make([]byte, l.payload)})
		}
	}
	return events, nil
}

func (l longLog) ahead(v *frontier.Value, memory int) *Ahead {
	return NewAhead(unprovenLog{l}, 10, func() *frontier.Value { return v }, plainConns{}, memory)
}

// follower reads a log as a consumer does.
type follower struct {
	*Reader
	at    int64
	token string
	own   int // pages that the follower read for itself
	seen  int64
	void  int64
}

// step passes one page, and reports whether there was one.
func (f *follower) step(t *testing.T) bool {
	p, v := f.Take(t.Context(), f.at, f.token)
	if v == nil {
		var err error
		v = f.ahead.value()
		if p, err = f.Read(t.Context(), nil, v, Place{Position: f.at, Limit: f.ahead.batch, Bound: Unbounded}); err != nil {
			t.Error(err)
			return false
		}
		f.own++
	}
	if p.Positions.Checkpoint != f.at || len(p.Events) > f.ahead.batch {
		t.Errorf("at %d the follower got %d events after %d", f.at, len(p.Events), p.Positions.Checkpoint)
		return false
	}
	for i := range p.Events {
		e := &p.Events[i]
		if e.GlobalPosition <= f.at || e.GlobalPosition%10 == 0 || len(e.Payload) > 0 && e.Payload[0] != 0 {
			t.Errorf("at %d the follower got %+v", f.at, e)
		}
		if len(e.Payload) > 0 {
			e.Payload[0] = 1 // as a handler may do
		}
		f.seen++
	}
	c, _ := p.Cross(v, 100)
	f.void += c.Void.Count
	if f.at = c.To; p.Full {
		f.Begin(t.Context(), f.at, p.Events)
	}
	return p.Full
}

// Each follower gets each event once, even if other followers modify their payloads. Followers
// that go together share each read.
func TestFollowersShareReads(t *testing.T) {
	const n = 8
	log := newLongLog(20_000, 8)
	v := &frontier.Value{Token: "t", Safe: log.last}
	a := log.ahead(v, 16<<20)
	var all []*follower
	for range n {
		f := &follower{Reader: a.Reader(nil, nil), token: "t"}
		defer f.Close()
		f.Begin(t.Context(), 0, nil)
		all = append(all, f)
	}
	var wg sync.WaitGroup
	for _, f := range all {
		wg.Go(func() {
			for f.step(t) {
			}
			if f.own > 0 || f.at != log.last || f.seen != log.last*9/10 || f.void != log.last/10 {
				t.Errorf("the follower reached %d with %d events and %d void positions, and read %d pages for itself", f.at, f.seen, f.void, f.own)
			}
		})
	}
	wg.Wait()
	if reads := log.reads.Load(); reads > log.last/maxEventsAhead+1 {
		t.Errorf("%d stretches were read for %d followers", reads, n)
	}
	if a.used != 0 || a.attached != 0 || len(a.unscoped.stretches) > 0 {
		t.Errorf("%d bytes are kept for %d followers", a.used, a.attached)
	}
}

// The parts of a consumer together get each event once, in full batches. The log is read once
// for all of them.
func TestPartsShareReads(t *testing.T) {
	const n = 8
	log := newLongLog(20_000, 8)
	v := &frontier.Value{Token: "t", Safe: log.last}
	a := log.ahead(v, 16<<20)
	var all []*follower
	var pages atomic.Int64
	for i := range n {
		share := &Share{Of: "c", OneIn: n, First: i, Last: i, Slot: func(e *store.PersistedEvent) (int, error) { return int(e.GlobalPosition / 10 % n), nil }}
		f := &follower{Reader: a.Reader(nil, share), token: "t"}
		defer f.Close()
		f.Begin(t.Context(), 0, nil)
		all = append(all, f)
	}
	var wg sync.WaitGroup
	var seen atomic.Int64
	for _, f := range all {
		wg.Go(func() {
			for f.step(t) {
				pages.Add(1)
			}
			seen.Add(f.seen)
			if f.at != log.last || f.void != log.last/10 {
				t.Errorf("the part reached %d with %d events and %d void positions, and read %d pages for itself", f.at, f.seen, f.void, f.own)
			}
		})
	}
	wg.Wait()
	if seen.Load() != log.last*9/10 {
		t.Errorf("%d events were handled of %d", seen.Load(), log.last*9/10)
	}
	if least := log.last * 9 / 10 / int64(a.batch); pages.Load() > least*3/2 {
		t.Errorf("%d pages, %d would suffice", pages.Load(), least)
	}
	if a.used != 0 || a.attached != 0 || len(a.unscoped.stretches) > 0 {
		t.Errorf("%d bytes are kept for %d followers", a.used, a.attached)
	}
}

// A part that reads for itself gets a batch of its own events.
func TestPartReadsItsShare(t *testing.T) {
	log := newLongLog(20_000, 0)
	v := &frontier.Value{Token: "t", Safe: log.last}
	r := log.ahead(v, 0).Reader(nil, &Share{Of: "c", OneIn: 8, First: 3, Last: 3, Slot: func(e *store.PersistedEvent) (int, error) { return int(e.GlobalPosition % 8), nil }})
	defer r.Close()
	events, void := 0, int64(0)
	for at, pages := int64(0), 0; at < log.last; pages++ {
		p, err := r.Read(t.Context(), nil, v, Place{Position: at, Limit: 10, Bound: Unbounded})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range p.Events {
			if e.GlobalPosition%8 != 3 {
				t.Fatalf("the part got position %d", e.GlobalPosition)
			}
		}
		c, _ := p.Cross(v, 100)
		events, void, at = events+len(p.Events), void+c.Void.Count, c.To
		if p.Full != (at < log.last) {
			t.Fatalf("at %d of %d full is %v", at, log.last, p.Full)
		}
		if pages > 300 {
			t.Fatalf("%d pages, for %d events", pages, events)
		}
	}
	if want := 2500; events != want || void != log.last/10 {
		t.Errorf("%d events and %d void positions", events, void)
	}
}

// A key function that fails once and then works does not deliver events to other parts.
func TestKeyThatFailsOnce(t *testing.T) {
	log := newLongLog(100, 0)
	v := &frontier.Value{Token: "t", Safe: log.last}
	failed := map[int64]bool{}
	r := log.ahead(v, 0).Reader(nil, &Share{Of: "c", OneIn: 8, First: 3, Last: 3, Slot: func(e *store.PersistedEvent) (int, error) {
		if !failed[e.GlobalPosition] {
			failed[e.GlobalPosition] = true
			return 0, errors.New("the key panicked")
		}
		return int(e.GlobalPosition % 8), nil
	}})
	defer r.Close()
	p, err := r.Read(t.Context(), nil, v, Place{Position: 0, Limit: 10, Bound: Unbounded})
	if err != nil {
		t.Fatal(err)
	}
	if r.Failure() == nil && slices.ContainsFunc(p.Events, func(e store.PersistedEvent) bool { return e.GlobalPosition%8 != 3 }) {
		t.Errorf("the part got %d events, also those of other parts", len(p.Events))
	}
}

// A reader that stands still does not delay other readers, and the memory stays bounded. When
// it goes on, it gets pages that the others passed long ago.
func TestMemoryIsBounded(t *testing.T) {
	const memory = 1 << 20
	log := newLongLog(20_000, 1000)
	v := &frontier.Value{Token: "t", Safe: log.last}
	a := log.ahead(v, memory)
	slow, quick := &follower{Reader: a.Reader(nil, nil), token: "t"}, &follower{Reader: a.Reader(nil, nil), token: "t"}
	defer slow.Close()
	defer quick.Close()
	bounded := func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.used > memory || a.used < 0 {
			t.Fatalf("%d bytes are kept", a.used)
		}
	}
	slow.step(t)
	for quick.step(t) {
		bounded()
	}
	for slow.step(t) {
		bounded()
	}
	if quick.seen != log.last*9/10 || slow.seen != quick.seen || quick.own+slow.own > 100 {
		t.Errorf("the readers reached %d and %d with %d and %d events, and read %d and %d pages for themselves", quick.at, slow.at, quick.seen, slow.seen, quick.own, slow.own)
	}
}

// A failed read ends no reader. Each reader reads for itself, and gets the error or goes on.
func TestFailedReadAhead(t *testing.T) {
	log := newLongLog(2_000, 0)
	fails := errors.New("no")
	var down atomic.Bool
	log.before = func(context.Context) error {
		if down.Load() {
			return fails
		}
		return nil
	}
	a := log.ahead(&frontier.Value{Token: "t", Safe: log.last}, 16<<20)
	f := &follower{Reader: a.Reader(nil, nil), token: "t"}
	defer f.Close()
	down.Store(true)
	f.Begin(t.Context(), 0, nil)
	if pages, err := f.Await(); pages != 0 || !errors.Is(err, fails) {
		t.Fatalf("%d pages, %v", pages, err)
	}
	if _, v := f.Take(t.Context(), 0, "t"); v != nil || f.Follows() {
		t.Error("Take returned a page that was not read")
	}
	down.Store(false)
	for f.step(t) {
	}
	if f.at != log.last || f.own != 1 {
		t.Errorf("the follower reached %d, and read %d pages for itself", f.at, f.own)
	}
	if a.used != 0 || a.attached != 0 {
		t.Errorf("at the end %d bytes are kept for %d followers", a.used, a.attached)
	}
}

// A stretch that arrives after all readers have left is dropped.
func TestReadWithoutReadersIsDropped(t *testing.T) {
	log := newLongLog(2_000, 8)
	begun, goOn := make(chan struct{}), make(chan struct{})
	log.before = func(context.Context) error {
		close(begun)
		<-goOn
		return nil
	}
	a := log.ahead(&frontier.Value{Token: "t", Safe: log.last}, 16<<20)
	r := a.Reader(nil, nil)
	defer r.Close()
	r.Begin(t.Context(), 0, nil)
	<-begun
	reading := r.Reading()
	r.Drop()
	close(goOn)
	<-reading[0].Done()
	if a.used != 0 || a.attached != 0 || len(a.unscoped.stretches) > 0 {
		t.Errorf("%d bytes are kept for %d followers", a.used, a.attached)
	}
}

// A page of one incarnation is not given to a reader in another incarnation.
func TestPagesOfAnotherIncarnation(t *testing.T) {
	log := newLongLog(2_000, 0)
	var v atomic.Pointer[frontier.Value]
	v.Store(&frontier.Value{Token: "one", Safe: log.last})
	a := NewAhead(unprovenLog{log}, 10, v.Load, plainConns{}, 16<<20)
	old, young := &follower{Reader: a.Reader(nil, nil), token: "one"}, &follower{Reader: a.Reader(nil, nil), token: "two"}
	defer old.Close()
	defer young.Close()
	old.step(t)
	old.step(t)
	if _, err := old.Await(); err != nil {
		t.Fatal(err)
	}
	if _, got := old.Take(t.Context(), old.at, "two"); got != nil {
		t.Errorf("a reader that came to another incarnation got a page of %q", got.Token)
	}
	old.Begin(t.Context(), old.at, nil)
	v.Store(&frontier.Value{Token: "two", Safe: log.last})
	young.Begin(t.Context(), 100, nil)
	if _, got := young.Take(t.Context(), 100, "two"); got != nil {
		t.Errorf("a reader of another incarnation got a page of %q", got.Token)
	}
	for young.step(t) {
	}
	if young.own != 1 || young.seen != log.last*9/10 {
		t.Errorf("in the other incarnation the follower reached %d with %d events, and read %d pages for itself", young.at, young.seen, young.own)
	}
}

// Ahead reads no position in doubt, and none above Safe.
func TestReadAheadEndsAtDoubts(t *testing.T) {
	log := newLongLog(2_000, 0)
	v := &frontier.Value{Token: "t", Safe: 1_500, Doubts: []store.Range{{First: 1_000, Last: 1_000}}}
	a := log.ahead(v, 16<<20)
	r := a.Reader(nil, nil)
	defer r.Close()
	r.Begin(t.Context(), 0, nil)
	if _, err := r.Await(); err != nil {
		t.Fatal(err)
	}
	if last := a.unscoped.stretches[len(a.unscoped.stretches)-1]; last.through != 999 {
		t.Errorf("Ahead read up to %d, want 999", last.through)
	}
	r.Begin(t.Context(), 1_001, nil)
	if _, err := r.Await(); err != nil {
		t.Fatal(err)
	}
	if last := a.unscoped.stretches[len(a.unscoped.stretches)-1]; last.through != 1_500 || last.more {
		t.Errorf("Ahead read up to %d, want 1500", last.through)
	}
}

// The last reader to close cancels the read and waits for its end. Until then the read goes
// on.
func TestLastCloseCancelsTheRead(t *testing.T) {
	log := newLongLog(2_000, 0)
	begun, ended := make(chan struct{}), make(chan error, 1)
	log.before = func(ctx context.Context) error {
		close(begun)
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}
	a := log.ahead(&frontier.Value{Token: "t", Safe: log.last}, 16<<20)
	first, last := a.Reader(nil, nil), a.Reader(nil, nil)
	intake, cancel := context.WithCancel(t.Context())
	first.Begin(intake, 0, nil)
	last.Begin(t.Context(), 0, nil)
	<-begun
	cancel()
	if _, v := first.Take(intake, 0, "t"); v != nil {
		t.Error("Take returned a page that was not read")
	}
	first.Close()
	select {
	case err := <-ended:
		t.Fatalf("the read ended with its first reader: %v", err)
	default:
	}
	last.Close()
	select {
	case err := <-ended:
		if reading := len(last.Reading()); !errors.Is(err, context.Canceled) || reading > 0 {
			t.Errorf("the read ended with %v, %d reads go on", err, reading)
		}
	default:
		t.Error("after the last Close a read goes on")
	}
}

// A stretch has as many pages as its limits and the memory allow, and at least one.
func TestExtentOfAStretch(t *testing.T) {
	const all = 16 << 20
	for _, c := range []struct {
		batch, width, readers, memory int
		far                           int64
		pages, bytes                  int
	}{
		{100, 0, 1, all, maxEventsAhead, maxEventsAhead / 100, maxBytesAhead}, {1000, 0, 1, all, maxEventsAhead, maxEventsAhead / 1000, maxBytesAhead}, {maxEventsAhead + 1, 0, 1, all, maxEventsAhead, 1, maxBytesAhead},
		{10, maxBytesAhead / 100, 1, all, maxEventsAhead, 10, maxBytesAhead / 100 * 100}, {100, maxBytesAhead / 100, 1, all, maxEventsAhead, 1, maxBytesAhead / 100 * 100},
		{100, 0, 8, all, maxEventsAhead, maxEventsAhead / 100, all / 16}, {100, 1000, 8, all, maxEventsAhead, 10, 1_000_000},
		{100, 0, 1, all, 150, 2, maxBytesAhead}, {100, 1 << 20, 1, all, maxEventsAhead, 1, 8 << 20},
	} {
		a := &Ahead{batch: c.batch, memory: c.memory, attached: c.readers}
		w := &window{width: c.width}
		if pages, bytes := a.extent(w, span{0, c.far}); pages != c.pages || bytes != c.bytes {
			t.Errorf("%+v: %d pages of %d bytes", c, pages, bytes)
		}
	}
}
