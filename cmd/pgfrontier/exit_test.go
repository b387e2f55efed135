package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgfrontier/worker/ops"
)

// Scripts know the statuses by number, from the documentation.
func TestStatusesAreThoseOfTheDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/command-line.md")
	if err != nil {
		t.Fatal(err)
	}
	for code, says := range map[int]string{exitDone: "| 0 | done |", exitRefused: "| 1 | refused, or a check says no |", exitUnable: "| 2 | wrong usage", exitUnknown: "| 3 | the answer to a COMMIT was lost"} {
		if !strings.HasPrefix(says, fmt.Sprintf("| %d |", code)) || !strings.Contains(string(text), says) {
			t.Errorf("status %d is not that of %s", code, says)
		}
	}
}

// Whatever lost the answer to a COMMIT, the status is 3, and the number of the operation is said.
func TestLostAnswers(t *testing.T) {
	for _, cause := range []error{context.DeadlineExceeded, context.Canceled, ops.ErrUnchanged, errors.New("reset by peer")} {
		err := judge(fmt.Errorf("pause: %w", &ops.UnknownOutcomeError{Operation: 9, Err: cause}))
		if exitOf(err) != exitUnknown || !strings.Contains(err.Error(), "operation 9") {
			t.Errorf("%v: status %d, %v", cause, exitOf(err), err)
		}
	}
}

// A lost GRANT has its remedy.
func TestMissingPrivilege(t *testing.T) {
	err := judge(fmt.Errorf("pause: %w", &pgconn.PgError{Code: "42501", Message: "permission denied for table consumer_operations"}))
	if exitOf(err) != exitUnable || !strings.Contains(err.Error(), "migrate grants") {
		t.Errorf("status %d, %v", exitOf(err), err)
	}
}

// Each error that package ops exports has its exit status: exit.go names it.
func TestEveryErrorOfOpsIsJudged(t *testing.T) {
	declared := regexp.MustCompile(`(?m)^(?:\t|var )(Err[A-Z]\w*) += |^type (\w+Error) struct`)
	judged, err := os.ReadFile("exit.go")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../ops/*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, names := range declared.FindAllStringSubmatch(string(text), -1) {
			name := names[1] + names[2]
			// What is invalid is the command's inability, which is what remains.
			if found++; name != "ErrInvalid" && !regexp.MustCompile(`\bops\.`+name+`\b`).Match(judged) {
				t.Errorf("%s declares %s, which has no exit status", file, name)
			}
		}
	}
	if found < 11 {
		t.Errorf("%d errors were found", found)
	}
}
