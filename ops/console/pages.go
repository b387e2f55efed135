package console

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pgfrontier/worker/internal/demand"
	"github.com/pgfrontier/worker/internal/scope"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
)

// consumerPage is one consumer.
type consumerPage struct {
	*snapshot `json:"-"`
	Consumer  ops.Consumer
	LastError string `json:",omitempty"`
	// UnitErrors are the errors of its units, by name.
	UnitErrors map[string]string `json:",omitempty"`
	// Disagreement says which workers select less than others, or demand another number of
	// partitions than the consumer has; empty: none.
	Disagreement string `json:",omitempty"`
	Next         []ops.Next
	Open         []ops.Gap
	Operations   []ops.Operation
	Comparisons  []ops.Comparison `json:"-"` // that are of it
}

func (p consumerPage) heading() string { return "Consumer " + p.Consumer.Name }

// Revision is the revision of the consumer, or of a unit of it.
func (p consumerPage) Revision(name string) int64 {
	for _, u := range p.Consumer.Units {
		if u.Name == name {
			return u.Revision
		}
	}
	return p.Consumer.Revision
}

// Selects describes the events that its code selects; empty: the database does not know.
func (p consumerPage) Selects() string {
	if p.Consumer.Scope == nil {
		return ""
	}
	return scope.Of(p.Consumer.Scope.Types, p.Consumer.Scope.Version, p.Consumer.Scope.Start, p.Consumer.Scope.Projection).Words()
}

// AnyPaused reports whether there is something to resume.
func (p consumerPage) AnyPaused() bool {
	return p.Consumer.Paused != nil || slices.ContainsFunc(p.Consumer.Units, func(u ops.Unit) bool { return u.Paused != nil })
}

// noConsumer returns the error that there is no consumer of a name.
func noConsumer(name string) error {
	return &refusal{http.StatusNotFound, fmt.Sprintf("There is no consumer %.100q. One is there when a worker that has code for it has started for the first time.", name)}
}

// known returns an error if there is no consumer of a name.
func (r *eventReads) known(ctx context.Context, name string) error {
	_, err := r.consumers.Next(ctx, name)
	if errors.Is(err, ops.ErrNotFound) {
		return noConsumer(name)
	}
	return err
}

func (r *eventReads) consumer(ctx context.Context, q query, _ Grant) (any, error) {
	s, err := r.look(ctx)
	if err != nil {
		return nil, err
	}
	p, err := consumerOf(s, q.Get("name"))
	if err != nil {
		return nil, err
	}
	name := p.Consumer.Name
	if p.Next, err = r.consumers.Next(ctx, name); err != nil {
		return nil, err
	}
	if p.Open, err = r.consumers.Gaps(ctx, name, ops.GapFilter{OnlyOpen: true}, perPage); err != nil {
		return nil, err
	}
	for _, c := range r.comparisons {
		if c.Old == name || c.New == name {
			p.Comparisons = append(p.Comparisons, c)
		}
	}
	p.Operations, err = r.consumers.Operations(ctx, ops.OperationFilter{Consumer: name}, 10)
	return p, err
}

// consumerOf returns the consumer from a snapshot.
func consumerOf(s *snapshot, name string) (p consumerPage, err error) {
	p.snapshot = s
	var ok bool
	if p.Consumer, ok = s.consumer(name); !ok {
		return p, noConsumer(name)
	}
	p.LastError = s.LastError(name)
	p.Disagreement = cmp.Or(demand.Waiting(p.Consumer, s.living(), placeOf), demand.Disagreement(p.Consumer, s.living(), placeOf))
	for _, u := range p.Consumer.Units {
		e := s.LastError(u.Name)
		if e == "" {
			continue
		}
		if p.LastError == "" {
			p.LastError = u.Name + ": " + e
		}
		if p.UnitErrors == nil {
			p.UnitErrors = map[string]string{}
		}
		p.UnitErrors[u.Name] = e
	}
	return p, nil
}

// lettersPage are dead letters of a consumer.
type lettersPage struct {
	Consumer  string
	Filter    ops.DeadLetterFilter
	Older     string `json:"-"`
	Letters   []ops.DeadLetter
	Next      int64       `json:",omitempty"` // the key of the next page; 0: this is the last
	Consumers []concerned `json:",omitempty"` // with most dead letters, if no consumer was chosen
}

// concerned is a consumer with rows for a page, such as dead letters, and their number.
type concerned struct {
	Consumer string
	Number   int64
}

const mostConcerned = 100

// concernedBy are the consumers that have most of something.
func (r *eventReads) concernedBy(ctx context.Context, number func(ops.Consumer) int64) (some []concerned, err error) {
	all, err := r.consumers.Consumers(ctx)
	for _, one := range all {
		if n := number(one); n > 0 {
			some = append(some, concerned{one.Name, n})
		}
	}
	slices.SortStableFunc(some, func(a, b concerned) int { return cmp.Compare(b.Number, a.Number) })
	return some[:min(len(some), mostConcerned)], err
}

func (p lettersPage) heading() string {
	if p.Consumer == "" {
		return "Dead letters"
	}
	return "Dead letters of " + p.Consumer
}

func letterFilter(q query) ops.DeadLetterFilter {
	return ops.DeadLetterFilter{AggregateType: q.Get("aggregate"), EventType: q.Get("type"), Error: q.Get("error"), OlderThan: q.duration("older"), After: q.int("after")}
}

func (r *eventReads) letters(ctx context.Context, q query, _ Grant) (any, error) {
	p := lettersPage{Consumer: q.Get("consumer"), Filter: letterFilter(q), Older: q.Get("older")}
	var err error
	if p.Consumer == "" || *q.err != nil {
		p.Consumers, err = r.concernedBy(ctx, func(one ops.Consumer) int64 { return one.DeadLetters })
		return p, err
	}
	all, err := r.consumers.FilterDeadLetters(ctx, p.Consumer, p.Filter, false, perPage+1)
	if err == nil && len(all) == 0 {
		err = r.known(ctx, p.Consumer)
	}
	p.Letters, p.Next = firstOf(all, func(l ops.DeadLetter) int64 { return l.Position })
	return p, err
}

// letterPage is one dead letter.
type letterPage struct {
	Letter ops.DeadLetter
	Event  *eventPage `json:",omitempty"` // nil: it may not be seen, or is not in the log any more
}

func (p letterPage) heading() string {
	return fmt.Sprintf("Dead letter %s of %s", thousands(p.Letter.Position), p.Letter.Consumer)
}

func (r *eventReads) letter(ctx context.Context, q query, g Grant) (any, error) {
	name, position := q.Get("consumer"), q.int("position")
	found, err := r.consumers.FilterDeadLetters(ctx, name, ops.DeadLetterFilter{After: max(position-1, 0)}, false, 1)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 || found[0].Position != position {
		return nil, &refusal{http.StatusNotFound, "There is no dead letter at this position. It may have been handled or discarded meanwhile."}
	}
	p := letterPage{Letter: found[0]}
	e, err := r.readEvent(ctx, position, g)
	switch {
	case err == nil:
		p.Event = &e
	case !errors.Is(err, ops.ErrNotFound):
		return nil, err
	}
	return p, nil
}

// eventPage is an event. Without the level Payloads it has neither payload nor metadata.
type eventPage struct {
	Event store.PersistedEvent
	// Payload is the payload as text, by the application's decoder if there is one.
	Payload, Metadata string `json:",omitempty"`
	PayloadError      string `json:",omitempty"` // of the decoder
	Hidden            bool   // the reader may not see the payload
	Previous, Next    int64  `json:"-"`
}

func (p eventPage) heading() string {
	if p.Event.GlobalPosition == 0 {
		return "Event"
	}
	return "Event " + thousands(p.Event.GlobalPosition)
}

func (r *eventReads) event(ctx context.Context, q query, g Grant) (any, error) {
	if q.Get("position") == "" {
		return eventPage{}, nil
	}
	position := q.int("position")
	if *q.err != nil {
		return nil, *q.err
	}
	e, err := r.readEvent(ctx, position, g)
	if err != nil {
		return nil, err
	}
	return e, nil
}

func (r *eventReads) readEvent(ctx context.Context, position int64, g Grant) (p eventPage, err error) {
	if p.Event, err = r.consumers.Event(ctx, position); err != nil {
		return p, err
	}
	p.Previous, p.Next = position-1, position+1
	if g.Level < Payloads {
		p.Event.Payload, p.Event.Metadata, p.Hidden = nil, nil, true
		return p, nil
	}
	p.Metadata = beginning(string(p.Event.Metadata))
	if r.payload == nil {
		p.Payload = plain(p.Event.Payload)
		return p, nil
	}
	text, err := r.decode(ctx, p.Event)
	if err != nil {
		p.PayloadError = err.Error()
	}
	p.Payload = beginning(text)
	return p, nil
}

// decode calls the application's decoder, which may panic at an unknown payload.
func (r *eventReads) decode(ctx context.Context, e store.PersistedEvent) (text string, err error) {
	defer func() {
		if r := recover(); r != nil {
			text, err = "", fmt.Errorf("the decoder panicked: %v", r)
		}
	}()
	return r.payload(ctx, e)
}

// plain returns bytes as text if they are text, otherwise a hex dump.
func plain(b []byte) string {
	if utf8.Valid(b) && !strings.ContainsRune(string(b), 0) {
		return beginning(string(b))
	}
	if len(b) > maxShown/4 {
		return hex.Dump(b[:maxShown/4]) + fmt.Sprintf("… (%d bytes)", len(b))
	}
	return hex.Dump(b)
}

// operationsPage shows the operations of operators.
type operationsPage struct {
	Consumer   string `json:",omitempty"`
	Operations []ops.Operation
	Next       int64 `json:",omitempty"`
}

func (p operationsPage) heading() string {
	if p.Consumer == "" {
		return "Operations"
	}
	return "Operations on " + p.Consumer
}

func (r *eventReads) operations(ctx context.Context, q query, _ Grant) (any, error) {
	p := operationsPage{Consumer: q.Get("consumer")}
	all, err := r.consumers.Operations(ctx, ops.OperationFilter{Consumer: p.Consumer, Before: q.int("before")}, perPage+1)
	p.Operations, p.Next = firstOf(all, operationID)
	return p, err
}

// blockedPage shows the transactions that hold the log back.
type blockedPage struct {
	*snapshot `json:"-"`
	Log       ops.Log
	Fault     string `json:",omitempty"` // why the log cannot be read, so that its blockers are unknown
	Blockers  []ops.Blocker
	Queries   bool `json:"-"` // they are shown
}

func blockedOf(s *snapshot, _ url.Values) (any, error) {
	return blockedPage{snapshot: s, Log: s.Log, Fault: s.Fault, Blockers: s.Blockers}, nil
}

func (r *eventReads) blocked(ctx context.Context, q query, g Grant) (any, error) {
	s, err := r.look(ctx)
	if err != nil {
		return nil, err
	}
	part, _ := blockedOf(s, nil)
	p := part.(blockedPage)
	if p.Queries = q.Get("queries") == "1" && g.Level >= Payloads; p.Queries {
		p.Blockers, err = r.consumers.Blockers(ctx, true)
	}
	return p, err
}

// gapsPage are ranges without an event that a consumer went past.
type gapsPage struct {
	Consumer  string
	OnlyOpen  bool
	Gaps      []ops.Gap
	Next      int64       `json:",omitempty"`
	Consumers []concerned `json:",omitempty"` // with most ranges in doubt, if no consumer was chosen
}

func (p gapsPage) heading() string {
	if p.Consumer == "" {
		return "Gaps"
	}
	return "Gaps of " + p.Consumer
}

func (r *eventReads) gaps(ctx context.Context, q query, _ Grant) (any, error) {
	p := gapsPage{Consumer: q.Get("consumer"), OnlyOpen: q.Get("open") == "1"}
	if p.Consumer == "" {
		var err error
		p.Consumers, err = r.concernedBy(ctx, func(one ops.Consumer) int64 { return one.OpenRanges })
		return p, err
	}
	all, err := r.consumers.Gaps(ctx, p.Consumer, ops.GapFilter{OnlyOpen: p.OnlyOpen, Before: q.int("before")}, perPage+1)
	if err == nil && len(all) == 0 {
		err = r.known(ctx, p.Consumer)
	}
	p.Gaps, p.Next = firstOf(all, func(g ops.Gap) int64 { return g.ID })
	return p, err
}
