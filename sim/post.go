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

	"github.com/pgfrontier/worker/sim/history"
)

// post carries what the server sends to a listener. Notifications it may lose
// or keep for a while; everything else passes.
type post struct {
	readable bool // nothing is encrypted

	mu    sync.Mutex
	mood  mood
	count int // of the notifications that it has lost or kept in this mood
	kept  []letter
}

type mood int

const (
	faithful mood = iota
	losing
	keeping
)

// letter is a notification, and who is to have it.
type letter struct {
	to   net.Conn
	text []byte
}

// carry copies from the server to a client until either ends.
func (p *post) carry(client, server net.Conn) error {
	if !p.readable {
		_, err := io.Copy(client, server)
		return err
	}
	for from := bufio.NewReader(server); ; {
		message, err := readMessage(from)
		if err == nil {
			err = p.deliver(client, message)
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

func (p *post) deliver(to net.Conn, message []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if message[0] == notification && p.mood != faithful {
		p.count++
		if p.mood == keeping {
			p.kept = append(p.kept, letter{to, message})
		}
		return nil
	}
	_, err := to.Write(message)
	return err
}

// change lets the post be in a mood. It delivers what it has kept, and returns
// how many notifications it had lost or kept.
func (p *post) change(to mood) (count int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.kept {
		_, _ = l.to.Write(l.text) // it may have gone
	}
	count, p.count = p.count, 0
	p.mood, p.kept = to, nil
	return count
}

// misdelivering lets the post to a worker's listener be in a mood for a while.
func misdelivering(f history.Fault, m mood) func(s *slot, ctx, intake context.Context, at point) error {
	return func(s *slot, _, intake context.Context, _ point) error {
		post := &s.node.relay.post
		post.change(m)
		s.pause(intake, 200*time.Millisecond, 1500*time.Millisecond)
		if n := post.change(faithful); n > 0 {
			s.tally.add(f, n)
			s.history.Add(s.node.name, "", history.FaultInjected, history.Injection{Fault: f, Where: fmt.Sprintf("%d until now", n)})
		}
		return nil
	}
}
