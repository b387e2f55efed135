package sim

import (
	"strings"
	"testing"
	"time"
)

func TestFindingsReferToTheHistory(t *testing.T) {
	h := NewHistory(time.Now())
	h.Add("writer 1", "", Begin, Transaction{Tx: 1})
	h.Add("writer 1", "", Committed, Transaction{Tx: 1, Positions: []Span{{1, 3}}})
	h.Add("worker 1.1", "other", BatchEnded, Batch{To: 3, First: 1, Last: 3})
	h.Add("worker 1.1", "all", BatchEnded, Batch{To: 3, First: 1, Last: 3})
	h.Add("worker 1.1", "all", BatchEnded, Batch{From: 3, To: 9, First: 4, Last: 9})
	e := &Evidence{Consumers: []Scope{{Name: "all"}}, Committed: []Event{{Position: 2, Type: "order", ID: "1", Version: 1}}, History: h}
	if f := exactlyOnce(e); f.Broken != 1 || !strings.Contains(f.Examples[0], "(history: 2, 4)") {
		t.Errorf("the finding is to name the commit and the consumer's batch: %+v", f)
	}
}
