package sim

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/pgfrontier/worker/sim/fault"
	"github.com/pgfrontier/worker/sim/history"
)

const (
	notificationsLost    history.Fault = "notifications lost"
	notificationsDelayed history.Fault = "notifications delayed"
)

// notifyLost is also read when the faults are over: what listens must look by
// itself, too.
const notifyLost = "notify-lost"

// notificationFaults keep notifications from a worker.
var notificationFaults = []faultRow{
	{
		Row: fault.Row{
			Name: notifyLost, Does: "loses the notifications to a worker for a while",
			Counts: []history.Fault{notificationsLost},
		},
		listens: true, needs: []*requirement{readable},
		worker: at(filtering(notificationsLost, dropping), afterGuard),
	},
	{
		Row: fault.Row{
			Name: "notify-late", Does: "delays the notifications to a worker",
			Counts: []history.Fault{notificationsDelayed},
		},
		listens: true, needs: []*requirement{readable},
		worker: at(filtering(notificationsDelayed, holding), afterGuard),
	},
}

// filter carries what the server sends to a listener. It may drop notifications,
// or hold them for a while; everything else passes.
type filter struct {
	readable bool // nothing is encrypted

	mu    sync.Mutex
	mode  mode
	count int // of the notifications that it has dropped or held in this mode
	held  []notice
}

type mode int

const (
	passing mode = iota
	dropping
	holding
)

// notice is a notification, and who is to have it.
type notice struct {
	to   net.Conn
	text []byte
}

// carry copies from the server to a client until either ends.
func (f *filter) carry(client, server net.Conn) error {
	if !f.readable {
		_, err := io.Copy(client, server)
		return err
	}
	for from := bufio.NewReader(server); ; {
		message, err := readMessage(from)
		if err == nil {
			err = f.deliver(client, message)
		}
		if err != nil {
			return err
		}
	}
}

// readMessage reads one message of the server: its type, its length, which
// counts itself, and the rest.
func readMessage(from io.Reader) ([]byte, error) {
	const most = 1 << 30 // PostgreSQL's own limit
	head := make([]byte, 5)
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(head[1:])
	if length < 4 || length > most {
		return nil, errors.New("sim: the server sent no message of the protocol")
	}
	message := append(head, make([]byte, length-4)...)
	_, err := io.ReadFull(from, message[5:])
	return message, err
}

const notification = 'A' // NotificationResponse

func (f *filter) deliver(to net.Conn, message []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if message[0] == notification && f.mode != passing {
		f.count++
		if f.mode == holding {
			f.held = append(f.held, notice{to, message})
		}
		return nil
	}
	_, err := to.Write(message)
	return err
}

// change changes the mode. It delivers what it has held, and returns how many
// notifications it had dropped or held.
func (f *filter) change(to mode) (count int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.held {
		_, _ = l.to.Write(l.text) // it may have gone
	}
	count, f.count = f.count, 0
	f.mode, f.held = to, nil
	return count
}

// filtering changes the mode of the filter before a worker's listener for a
// while.
func filtering(f history.Fault, m mode) func(s *slot, ctx, intake context.Context, at point) error {
	return func(s *slot, _, intake context.Context, _ point) error {
		filter := &s.node.relay.filter
		filter.change(m)
		s.pause(intake, 200*time.Millisecond, 1500*time.Millisecond)
		if n := filter.change(passing); n > 0 {
			s.tally.add(f, n)
			s.history.Add(s.node.name, "", history.FaultInjected, history.Injection{Fault: f, Where: fmt.Sprintf("%d until now", n)})
		}
		return nil
	}
}
