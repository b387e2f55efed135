package e2e

import (
	"strings"
	"testing"

	"github.com/pgfrontier/worker/store/consumer"
)

// A consumer does not stand still silently if a trigger drops the move of its checkpoint. Without the
// trigger each event is handled once.
func TestTriggerThatDropsTheMoveOfACheckpoint(t *testing.T) {
	t.Parallel()
	d := newLog(t)
	r := start(t, d.DB, []consumer.Consumer{&ledger{name: "c"}}, quick()...)
	appendN(t, d.DB, "T", "a", 1)
	awaitHandled(t, d.DB, "c", 1)
	d.DropRows(t, "UPDATE", "consumer_checkpoints")
	appendN(t, d.DB, "T", "a", 1)
	await(t, "the status to name the table", func() bool {
		of := r.Status().Consumers
		return len(of) == 1 && of[0].LastError != nil && strings.Contains(of[0].LastError.Error(), "leaves out rows of public.consumer_checkpoints without an error: a BEFORE trigger")
	})
	d.Exec(t, `DROP TRIGGER drop_rows ON consumer_checkpoints`)
	awaitHandled(t, d.DB, "c", 1, 2)
}
