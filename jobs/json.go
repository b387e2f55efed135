package jobs

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pgfrontier/worker/internal/errtext"
)

// encode returns v as JSON that PostgreSQL accepts.
func encode(v any) (text json.RawMessage, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("its MarshalJSON panicked: %s", errtext.Panic(p))
		}
	}()
	text, err = json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("no JSON: %w", errtext.Of(err))
	}
	if len(text) > MaxArgs {
		return nil, fmt.Errorf("%d bytes of JSON, allowed are %d (MaxArgs): store it elsewhere, and enqueue where it is", len(text), MaxArgs)
	}
	if err := checkJSON(text); err != nil {
		return nil, err
	}
	return text, nil
}

// maxDepth bounds how deep JSON is nested. PostgreSQL's default stack depth allows a few thousand
// levels; an administrator may set it.
const maxDepth = 1000

var (
	errUTF8      = errors.New("it has bytes that are no UTF-8, which JSON is")
	errNUL       = errors.New(`it has a NUL character, which PostgreSQL's jsonb cannot hold: leave it out, or encode the text`)
	errSurrogate = errors.New(`it has half of a surrogate pair (\ud800 to \udfff), which PostgreSQL's jsonb cannot hold`)
	errNumber    = errors.New("it has a number with more digits than PostgreSQL's numeric holds: 131072 before the point, 16383 behind it")
	errDepth     = fmt.Errorf("it is nested deeper than %d levels", maxDepth)
)

// checkJSON returns an error if jsonb cannot hold the text. text is output of encoding/json.
func checkJSON(text []byte) error {
	if !utf8.Valid(text) { // from a json.RawMessage
		return errUTF8
	}
	depth := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			n, err := checkString(text[i+1:])
			if err != nil {
				return err
			}
			i += n + 1
		case c == '[' || c == '{':
			if depth++; depth > maxDepth {
				return errDepth
			}
		case c == ']' || c == '}':
			depth--
		case '0' <= c && c <= '9':
			n := 1
			for i+n < len(text) && strings.IndexByte("0123456789.eE+-", text[i+n]) >= 0 {
				n++
			}
			if !fitsNumeric(string(text[i : i+n])) {
				return errNumber
			}
			i += n - 1
		}
	}
	return nil
}

// checkString checks a string and returns the index of its closing quote.
func checkString(text []byte) (end int, err error) {
	high := false // the previous character was the first half of a pair
	for ; text[end] != '"'; end++ {
		low := false
		if text[end] == '\\' {
			if end++; text[end] == 'u' {
				code, _ := strconv.ParseUint(string(text[end+1:end+5]), 16, 16)
				end += 4
				if code == 0 {
					return 0, errNUL
				}
				low = code >= 0xDC00 && code < 0xE000
				if low != high {
					return 0, errSurrogate
				}
				high = code >= 0xD800 && code < 0xDC00
				continue
			}
		}
		if high {
			return 0, errSurrogate
		}
	}
	if high {
		return 0, errSurrogate
	}
	return end, nil
}

// fitsNumeric reports whether PostgreSQL's numeric holds a number of JSON.
func fitsNumeric(number string) bool {
	const most, behind = 131_072, 16_383
	if len(number) < 10 && !strings.ContainsAny(number, "eE") {
		return true
	}
	mantissa, power, _ := strings.Cut(strings.ToLower(number), "e")
	exponent := 0
	if power != "" {
		var err error
		if exponent, err = strconv.Atoi(power); err != nil || exponent > most || exponent < -most {
			return false
		}
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	return len(whole)+exponent <= most && len(fraction)-exponent <= behind
}
