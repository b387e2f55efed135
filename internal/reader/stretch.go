package reader

import (
	"context"

	"github.com/pgfrontier/worker/frontier"
)

// A stretch has several pages, up to so many events and bytes. The bytes are estimated from
// earlier reads.
const (
	maxEventsAhead = 4_000
	maxBytesAhead  = 4 << 20
)

// Stretch is a sequence of consecutive pages, read by one statement.
type Stretch struct {
	after, through int64
	v              *frontier.Value // published before the read
	pages          []Page          // pages that have not been dropped
	bytes          int             // of Ahead.memory
	more           bool            // there are probably more events after it

	isRead    bool          // the pages are known, the counts of missing positions may not be
	isCounted bool          // the counts are known, too
	read      chan struct{} // closed when the read has ended or failed
	done      chan struct{} // closed when read and count have ended or failed
	cancel    context.CancelFunc
}

// Done returns a channel that is closed when the read of the stretch has ended or failed.
func (s *Stretch) Done() <-chan struct{} { return s.done }

// page returns the page after a position.
func (s *Stretch) page(at int64) (p Page, ok bool) {
	for _, p := range s.pages {
		if at < p.Positions.Through {
			return p.from(at)
		}
	}
	return Page{}, false
}

// shorten drops the first page and returns its bytes.
func (s *Stretch) shorten() (freed int) {
	p := &s.pages[0]
	freed = sizeOf(p.Events)
	s.after, s.bytes, s.pages = p.Positions.Through, s.bytes-freed, s.pages[1:]
	return freed
}
