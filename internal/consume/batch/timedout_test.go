package batch

import (
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/store"
)

// A batch that is shortened, and whose statement for that exceeds BatchTimeout, had as many events
// as were handled: they count in the error, and for the size of the next batch. No event is blamed.
func TestTimeoutWhileShortened(t *testing.T) {
	t.Parallel()
	events := make([]store.PersistedEvent, 100)
	tx := &Tx{Through: 30, call: events[29:30], called: time.Now().Add(-time.Hour)}
	b := &Batch{Handler: &Handler{Timeout: time.Second, Size: 100}, Tx: tx, Events: events}
	r := Result{Err: errBatchTimeout}
	b.timedOut(&r, 30)
	if size := r.Pace.Size(b.Size, b.Timeout); !r.Many || r.At != nil || size > 15 || size < 10 || !strings.Contains(r.Err.Error(), "30 of 100 events begun") {
		t.Errorf("the result is %+v, the next batch has %d events", r, size)
	}
}
