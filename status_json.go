package worker

import (
	"encoding/json"
	"slices"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/pgdriver"
)

// MarshalJSON writes the fields under their names, and errors as their texts.
func (s Status) MarshalJSON() ([]byte, error) {
	type fields Status
	return json.Marshal(struct {
		fields
		CoordinationError string `json:",omitempty"`
		FrontierError     string `json:",omitempty"`
		NotifyError       string `json:",omitempty"`
		LoopError         string `json:",omitempty"`
	}{fields(s), errtext.Storable(s.CoordinationError), errtext.Storable(s.FrontierError), errtext.Storable(s.NotifyError), errtext.Storable(s.LoopError)})
}

// MarshalJSON writes the fields under their names, and errors as their texts. LastErrorState is the
// SQLSTATE of LastError, if it has one.
func (s ConsumerStatus) MarshalJSON() ([]byte, error) {
	type fields ConsumerStatus
	return json.Marshal(struct {
		fields
		LastError      string `json:",omitempty"`
		LastErrorState string `json:",omitempty"`
	}{fields(s), errtext.Storable(s.LastError), pgdriver.SQLState(s.LastError)})
}

// heartbeatStatus is what a heartbeat leaves in the table of workers: the
// Status without the consumers that are others' affair.
func (w *Worker) heartbeatStatus() ([]byte, error) {
	s := w.Status()
	s.Consumers = slices.DeleteFunc(s.Consumers, func(c ConsumerStatus) bool { return !c.Assigned })
	status, err := json.Marshal(s)
	if w.ascii {
		status = []byte(errtext.ASCIIOfJSON(string(status)))
	}
	return status, err
}
