package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/pgfrontier/worker/jobs"
)

// Mail is what the provider sends.
type Mail struct {
	To   string `json:"to"`
	Text string `json:"text"`
}

// send has the provider send a mail. The provider knows by the key what it has sent.
func send(ctx context.Context, provider string, r Receipt) error {
	body, err := json.Marshal(r.Mail)
	if err != nil {
		return jobs.Fail(err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, provider, bytes.NewReader(body))
	if err != nil {
		return jobs.Fail(err)
	}
	request.Header.Set("Idempotency-Key", r.Key.String())
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("no answer of the provider, it may have sent the mail: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	switch answer.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusBadRequest:
		return jobs.Fail(fmt.Errorf("the provider refuses the mail: %s", answer.Status)) // as it would again
	}
	return fmt.Errorf("the provider answers %s", answer.Status)
}

// Provider stands in for a mail service on the internet. It sends one mail for each
// Idempotency-Key. Its first answer is lost, and its second one is that it has no time.
type Provider struct {
	mu       sync.Mutex
	requests int
	known    map[string]bool
}

func (p *Provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var mail Mail
	if err := json.NewDecoder(r.Body).Decode(&mail); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.requests++
	if p.requests == 2 {
		fmt.Printf("provider: has no time for %s\n", mail.To)
		http.Error(w, "no time", http.StatusServiceUnavailable)
		return
	}
	key := r.Header.Get("Idempotency-Key")
	if p.known[key] {
		fmt.Printf("provider: the mail to %s is sent already\n", mail.To)
		return
	}
	p.known[key] = true
	fmt.Printf("provider: sends a mail to %s\n", mail.To)
	if p.requests == 1 {
		fmt.Println("provider: its answer is lost")
		panic(http.ErrAbortHandler) // cuts the connection
	}
}

// startProvider returns the address of a Provider, and ends it.
func startProvider() (url string, end func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: &Provider{known: map[string]bool{}}}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // until Close
	}()
	return "http://" + listener.Addr().String(), func() {
		_ = server.Close()
		<-served
	}, nil
}
