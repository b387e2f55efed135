// Package history has the records of what happened while workers were tested, and the evidence that
// the oracle judges by. It knows neither workers nor databases, so that any driver can write it,
// and any reader can judge it again.
package history

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"time"
)

// History is what happened in a run, in order of time. Nothing in it is ever
// changed or taken out.
type History struct {
	began time.Time

	tell func(Record) // in place of keeping them

	mu      sync.Mutex
	records []Record
}

// New is a history whose times count from began.
func New(began time.Time) *History { return &History{began: began} }

// Tell is a history that keeps nothing: each record goes to tell, one at a time.
func Tell(began time.Time, tell func(Record)) *History { return &History{began: began, tell: tell} }

// Of is the history of earlier records.
func Of(records []Record) *History { return &History{began: time.Now(), records: records} }

// Add records what happened just now.
func (h *History) Add(who, consumer string, kind Kind, about any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := math.Round(time.Since(h.began).Seconds()*1e6) / 1e6
	if h.tell != nil {
		h.tell(Record{0, at, who, consumer, kind, about})
		return
	}
	h.records = append(h.records, Record{len(h.records) + 1, at, who, consumer, kind, about})
}

// Take adds a record of another process, at the present time.
func (h *History) Take(r Record) { h.Add(r.Who, r.Consumer, r.Kind, r.About) }

// Records are all records so far.
func (h *History) Records() []Record {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clip(h.records)
}

// WriteJSONLines writes one record to a line.
func (h *History) WriteJSONLines(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	for _, r := range h.Records() {
		if err := e.Encode(r); err != nil {
			return fmt.Errorf("sim: write the history: %w", err)
		}
	}
	return nil
}

// Spans joins positions that follow each other.
func Spans(positions []int64) []Span {
	var all []Span
	for _, p := range slices.Sorted(slices.Values(positions)) {
		if n := len(all); n > 0 && all[n-1].Last == p-1 {
			all[n-1].Last = p
		} else {
			all = append(all, Span{First: p, Last: p})
		}
	}
	return all
}

// PositionsOf are the positions of events.
func PositionsOf(events []Event) (all []int64) {
	for _, e := range events {
		all = append(all, e.Position)
	}
	return all
}
