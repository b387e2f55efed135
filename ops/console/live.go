package console

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// livePath is the stream of updates of a page: server-sent events, each a fragment of
// its template.
const livePath = "live"

const (
	streamLimit = 5 * time.Minute  // then the browser comes again, and Access is asked again
	writeLimit  = 10 * time.Second // for a viewer that does not read
)

// updatesOf returns the parameters of a page that the page's updates need.
func updatesOf(name string, q url.Values) url.Values {
	of := url.Values{"page": {name}}
	for _, key := range []string{"name", "find", "state", "after"} {
		if v := q.Get(key); v != "" {
			of.Set(key, v)
		}
	}
	return of
}

// stream sends a page's fragment again and again.
func (c *Console) stream(w http.ResponseWriter, r *http.Request, g Grant) {
	name := r.URL.Query().Get("page")
	v, known := views[name]
	if !known || v.part == nil {
		c.fail(w, r, g, &refusal{http.StatusNotFound, "This page has no updates."})
		return
	}
	q := updatesOf(name, r.URL.Query())
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	if r.Method == http.MethodHead {
		return
	}
	samples, leave, err := c.live.join()
	switch {
	case errors.Is(err, errClosed):
		w.WriteHeader(http.StatusNoContent)
		return
	case err != nil:
		c.fail(w, r, g, err)
		return
	}
	defer leave()
	out := http.NewResponseController(w)
	defer func() { _ = out.SetWriteDeadline(time.Time{}) }() // the connection may serve another request
	end := time.NewTimer(streamLimit)
	defer end.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-end.C:
			return
		case s, open := <-samples:
			if !open || send(w, out, s, v, q) != nil {
				return
			}
		}
	}
}

// send writes one update.
func send(w http.ResponseWriter, out *http.ResponseController, s *sample, v view, q url.Values) error {
	_ = out.SetWriteDeadline(time.Now().Add(writeLimit)) // a server that has none is bounded by the viewer's connection
	if _, err := w.Write(s.message(v, q)); err != nil {
		return err
	}
	return out.Flush()
}

// message is an update. It does not depend on the viewer: all viewers of the same page get the same.
func (s *sample) message(v view, q url.Values) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := q.Encode()
	if m := s.drawn[key]; m != nil {
		return m
	}
	event, err := "state", s.err
	var body []byte
	if err == nil {
		body, err = fragment(s.snapshot, v, q)
	}
	if err != nil {
		event, body = "away", []byte(err.Error())
	}
	var message bytes.Buffer
	fmt.Fprintf(&message, "event: %s\n", event)
	// A carriage return ends a line of the stream, too, and names may have one.
	for line := range bytes.Lines(bytes.ReplaceAll(body, []byte("\r"), []byte(" "))) {
		fmt.Fprintf(&message, "data: %s\n", bytes.TrimSuffix(line, []byte("\n")))
	}
	message.WriteString("\n")
	if s.drawn == nil {
		s.drawn = map[string][]byte{}
	}
	s.drawn[key] = message.Bytes()
	return message.Bytes()
}

// fragment draws the part of a page that changes.
func fragment(s *snapshot, v view, q url.Values) ([]byte, error) {
	data, err := v.part(s, q)
	if err != nil {
		return nil, err
	}
	var body bytes.Buffer
	err = templates[v.file].ExecuteTemplate(&body, "state", &page{Page: q.Get("page"), Data: data})
	return body.Bytes(), err
}
