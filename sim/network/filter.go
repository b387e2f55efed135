package network

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

// Filter carries what the server sends to a listener. It may drop notifications,
// or hold them for a while; everything else passes.
type Filter struct {
	readable bool // nothing is encrypted

	mu    sync.Mutex
	mode  Mode
	count int // of the notifications that it has dropped or held in this mode
	held  []notice
}

// Mode is what a filter does with notifications.
type Mode int

const (
	Passing Mode = iota
	Dropping
	Holding
)

// notice is a notification, and who is to have it.
type notice struct {
	to   net.Conn
	text []byte
}

// carry copies from the server to a client until either ends.
func (f *Filter) carry(client, server net.Conn) error {
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

func (f *Filter) deliver(to net.Conn, message []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if message[0] == notification && f.mode != Passing {
		f.count++
		if f.mode == Holding {
			f.held = append(f.held, notice{to, message})
		}
		return nil
	}
	_, err := to.Write(message)
	return err
}

// Change changes the mode. It delivers what it has held, and returns how many
// notifications it had dropped or held.
func (f *Filter) Change(to Mode) (count int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.held {
		_, _ = l.to.Write(l.text) // it may have gone
	}
	count, f.count = f.count, 0
	f.mode, f.held = to, nil
	return count
}
