package console

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/pgfrontier/worker/ops"
)

const (
	moment  = 15 * time.Second
	moments = 60 // that are kept, which is 15 minutes
)

// history is how far each consumer was behind the head, in memory: the maximum of each moment with
// an open live page. The zero history is empty.
type history struct {
	mu   sync.Mutex
	when [moments]int64             // the number of the moment that is kept at each index
	most map[string]*[moments]int64 // -1: the consumer did not exist
}

// add records how far the consumers are behind.
func (h *history) add(all []ops.Consumer, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	number := now.UnixNano() / int64(moment)
	i := number % moments
	if h.when[i] != number { // another begins
		h.when[i] = number
		for name, kept := range h.most {
			if kept[i] = -1; !h.has(kept, number) {
				delete(h.most, name)
			}
		}
	}
	for _, c := range all {
		kept := h.most[c.Name]
		if kept == nil {
			if h.most == nil {
				h.most = map[string]*[moments]int64{}
			}
			kept = new([moments]int64)
			for k := range kept {
				kept[k] = -1
			}
			h.most[c.Name] = kept
		}
		kept[i] = max(kept[i], c.HeadLag)
	}
}

// has reports whether a value is kept that is not too old.
func (h *history) has(kept *[moments]int64, now int64) bool {
	for i, v := range kept {
		if v >= 0 && h.when[i] > now-moments {
			return true
		}
	}
	return false
}

// spark is the line of a consumer's recorded lag. The zero spark draws nothing.
type spark struct{ Path, Text string }

const sparkHeight = 20 // and moments wide

// spark draws how far a consumer was behind, on a scale of its own.
func (h *history) spark(name string, now time.Time) spark {
	h.mu.Lock()
	defer h.mu.Unlock()
	kept := h.most[name]
	if kept == nil {
		return spark{}
	}
	last := now.UnixNano() / int64(moment)
	values, most, points := [moments]int64{}, int64(0), 0
	for x := range values {
		number := last - moments + 1 + int64(x)
		values[x] = -1
		if i := number % moments; h.when[i] == number && kept[i] >= 0 {
			values[x], points = kept[i], points+1
			most = max(most, values[x])
		}
	}
	if points < 2 {
		return spark{}
	}
	var path strings.Builder
	pen := "M"
	for x, v := range values {
		if v < 0 { // no page was open
			pen = "M"
			continue
		}
		y := sparkHeight - 1 - float64(v)/float64(max(most, 1))*(sparkHeight-2)
		fmt.Fprintf(&path, "%s%d %.1f", pen, x, y)
		if pen == "M" {
			fmt.Fprintf(&path, "h.5") // a single moment is seen, too
		}
		pen = "L"
	}
	return spark{path.String(), fmt.Sprintf("behind by %s at most in the last 15 minutes", thousands(most))}
}
