package reader

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/store"
)

// Events that differ in any field have different fingerprints, even if the log derives ids
// from positions. So a log that was emptied and filled again is detected.
func TestFingerprintsDiffer(t *testing.T) {
	id := uuid.MustParse("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
	event := store.PersistedEvent{GlobalPosition: 7, EventID: id, AggregateType: "Order", AggregateID: "1", AggregateVersion: 3,
		EventType: "Paid", EventVersion: 1, CreatedAt: time.UnixMicro(1), Payload: []byte("{}")}
	f := FingerprintOf(&event)
	for field, change := range map[string]func(e *store.PersistedEvent){
		"position":          func(e *store.PersistedEvent) { e.GlobalPosition++ },
		"id":                func(e *store.PersistedEvent) { e.EventID[15]++ },
		"aggregate type":    func(e *store.PersistedEvent) { e.AggregateType = "order" },
		"aggregate id":      func(e *store.PersistedEvent) { e.AggregateID = "2" },
		"aggregate version": func(e *store.PersistedEvent) { e.AggregateVersion++ },
		"type":              func(e *store.PersistedEvent) { e.EventType = "Sent" },
		"version":           func(e *store.PersistedEvent) { e.EventVersion++ },
		"time":              func(e *store.PersistedEvent) { e.CreatedAt = time.UnixMicro(2) },
		"payload":           func(e *store.PersistedEvent) { e.Payload = []byte("[]") },
	} {
		other := event
		if change(&other); FingerprintOf(&other) == f {
			t.Errorf("an event with another %s has the same fingerprint", field)
		}
	}
	same := event
	if same.CreatedAt = time.UnixMicro(1).UTC(); FingerprintOf(&same) != f {
		t.Error("an event read in another zone has another fingerprint")
	}
}
