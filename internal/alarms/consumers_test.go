package alarms_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/internal/alarms"
	"github.com/pgfrontier/worker/observe"
	"github.com/pgfrontier/worker/ops"
)

// denied is an error of PostgreSQL.
type denied struct{ state string }

func (e denied) Error() string    { return "permission denied for table totals" }
func (e denied) SQLState() string { return e.state }

// status returns the Status of a worker whose units fail with these errors.
func status(t *testing.T, of map[string]error) json.RawMessage {
	t.Helper()
	var s worker.Status
	position := int64(0)
	for name, err := range of {
		position++
		s.Consumers = append(s.Consumers, observe.ConsumerStatus{Name: name, Stuck: position, LastError: &worker.ConsumerError{
			Consumer: name, Position: position, Failures: int(position), EventID: uuid.New(), EventType: fmt.Sprintf("T (%d)", position), Err: err,
		}})
	}
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Units of a consumer that fail for the same reason are one alarm, which names them.
func TestUnitsShareAnAlarm(t *testing.T) {
	boom := errors.New("no such mailbox")
	first, second := map[string]error{"d#000-7ff": boom, "c#7ff-7ff": errors.New("another")}, map[string]error{"d": boom}
	for i := range 11 {
		of := first
		if i%2 == 1 {
			of = second
		}
		of[fmt.Sprintf("c#%03x-%03x", 16*i, 16*i+15)] = boom
	}
	got := lines(alarms.List([]ops.Worker{{Host: "h", PID: 1, Status: status(t, first)}, {Host: "h", PID: 2, Status: status(t, second)}}, place))
	if n := strings.Count(got, "\n"); n != 3 {
		t.Errorf("%d alarms, want those of c, of its last unit and of d:\n%s", n, got)
	}
	if want := "consumer c: 11 units (000-00f, 010-01f, 020-02f, 030-03f, 040-04f, 050-05f, 060-06f, 070-07f, 080-08f, 090-09f, 0a0-0af): no such mailbox\n"; !strings.Contains(got, want) {
		t.Errorf("%s\nlacks\n%s", got, want)
	}
}

// Remedy suggests a skip only if the event may be the cause.
func TestRemediesOfConsumers(t *testing.T) {
	for state, want := range map[string]string{"42501": "GRANT", "42P01": "mend the statement", "23505": "pgfrontier skip NAME POSITION", "": "pgfrontier skip NAME POSITION"} {
		shared := alarms.Share(alarms.UnitErrors(status(t, map[string]error{"c": denied{state}})))
		if len(shared) != 1 || !strings.Contains(shared[0].Remedy(), want) || strings.Contains(shared[0].Remedy(), "pgfrontier skip") != strings.HasPrefix(want, "pgfrontier") {
			t.Errorf("SQLSTATE %q: %+v: %s", state, shared, shared[0].Remedy())
		}
	}
	if remedy := (alarms.Shared{}).Remedy(); strings.Contains(remedy, "skip") {
		t.Errorf("where no event is known: %s", remedy)
	}
}
