package worker

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/pgfrontier/worker/internal/errtext"
)

// MarshalJSON writes the fields under their names, and errors as their texts.
func (s Status) MarshalJSON() ([]byte, error) {
	type fields Status
	return json.Marshal(struct {
		fields
		CoordinationError string `json:",omitempty"`
		FrontierError     string `json:",omitempty"`
		NotifyError       string `json:",omitempty"`
	}{fields(s), text(s.CoordinationError), text(s.FrontierError), text(s.NotifyError)})
}

// MarshalJSON writes the fields under their names, and errors as their texts.
func (s ConsumerStatus) MarshalJSON() ([]byte, error) {
	type fields ConsumerStatus
	return json.Marshal(struct {
		fields
		LastError string `json:",omitempty"`
	}{fields(s), text(s.LastError)})
}

// text is what an error says, as PostgreSQL can store it.
func text(err error) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(strings.ToValidUTF8(errtext.Of(err).Error(), "\uFFFD"), "\x00", `\0`)
}

// heartbeatStatus is what a heartbeat leaves in the table of workers: the
// Status without the consumers that are others' affair.
func (w *Worker) heartbeatStatus() ([]byte, error) {
	s := w.Status()
	s.Consumers = slices.DeleteFunc(s.Consumers, func(c ConsumerStatus) bool { return !c.Assigned })
	return json.Marshal(s)
}
