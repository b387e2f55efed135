package oracle

import (
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/sim/history"
)

func TestFindingsReferToTheHistory(t *testing.T) {
	h := history.New(time.Now())
	h.Add("writer 1", "", history.Begin, history.Transaction{Tx: 1})
	h.Add("writer 1", "", history.Committed, history.Transaction{Tx: 1, Positions: []history.Span{{First: 1, Last: 3}}})
	h.Add("worker 1.1", "other", history.BatchEnded, history.Batch{To: 3, First: 1, Last: 3})
	h.Add("worker 1.1", "all", history.BatchEnded, history.Batch{To: 3, First: 1, Last: 3})
	h.Add("worker 1.1", "all", history.BatchEnded, history.Batch{From: 3, To: 9, First: 4, Last: 9})
	e := &history.Evidence{Consumers: []history.Scope{{Name: "all"}}, Committed: []history.Event{{Position: 2, Type: "order", ID: "1", Version: 1}}, History: h}
	if f := exactlyOnce(e); f.Broken != 1 || !strings.Contains(f.Examples[0], "(history: 2, 4)") {
		t.Errorf("the finding is to name the commit and the consumer's batch: %+v", f)
	}
}
