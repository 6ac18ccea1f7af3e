package tidegate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"time"
	"unicode/utf8"
)

// Unknown is a Delay, RetryAfter, Period or Reset that is not known.
const Unknown = time.Duration(math.MinInt64)

const keyBytesMax = 1024

// handedOn are the headers of the server's answer that middleware passes on.
var handedOn = [...]string{"RateLimit-Policy", "RateLimit", "Retry-After"}

// Result is the answer to Check, Wait and Hold.
type Result struct {
	Allowed bool
	// Delay is how long until the use could be taken: 0 if at once, or Unknown.
	Delay time.Duration
	// RefusedBy is the name of the rule that refused.
	RefusedBy string
	Limits    []Limit
	// Degraded says that it was decided without the counts: by the server without its store, or
	// here.
	Degraded bool
	// Err is why it was decided here, by OnError.
	Err error
	// ID is what a held use is released by.
	ID string
	// Header has RateLimit, RateLimit-Policy and Retry-After, as far as the server sent them.
	Header http.Header
}

// Limit is one limit of one key.
type Limit struct {
	Key, Rule, Limit string
	Amount           int64
	Period           time.Duration
	// Remaining is nil if it was decided without any counts.
	Remaining         *int64
	Rate              float64
	RetryAfter, Reset time.Duration
	Degraded          bool
}

// InvalidKey is a key of more than 1024 bytes, or that is not UTF-8. It was not sent.
type InvalidKey struct{ Detail string }

func (e *InvalidKey) Error() string { return "tidegate: " + e.Detail }

// InvalidRequest says that the server rejected the request, or that the client did not send it: then
// Status is 0. Reason and Detail say why.
type InvalidRequest struct {
	Status         int
	Reason, Detail string
}

func (e *InvalidRequest) Error() string {
	if e.Status == 0 {
		return fmt.Sprintf("tidegate: %s: %s", e.Reason, e.Detail)
	}
	return fmt.Sprintf("tidegate: %d %s: %s", e.Status, e.Reason, e.Detail)
}

// Kind says why there was no usable answer.
type Kind int

const (
	// Unreachable: no connection could be made, or it broke.
	Unreachable Kind = iota
	// TimedOut: the server did not answer in time.
	TimedOut
	// ServerError: the server answered with an error, or with something that is not a Tidegate
	// answer.
	ServerError
)

// Unavailable says that there was no usable answer.
type Unavailable struct {
	Kind Kind
	Err  error
}

func (e *Unavailable) Error() string { return "tidegate: " + e.Err.Error() }

func (e *Unavailable) Unwrap() error { return e.Err }

func unavailable(err error) error {
	var known *Unavailable
	var network net.Error
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return &Unavailable{TimedOut, errors.New("no answer in time")}
	}
	return &Unavailable{Unreachable, err}
}

func examine(key string) error {
	if len(key) > keyBytesMax {
		text := "the key has %d bytes; at most %d are allowed"
		return &InvalidKey{fmt.Sprintf(text, len(key), keyBytesMax)}
	}
	if !utf8.ValidString(key) {
		return &InvalidKey{"the key is not UTF-8"}
	}
	return nil
}

// answer is the body of 200 and 429.
type answer struct {
	Allowed   *bool       `json:"allowed"`
	DelayMs   *int64      `json:"delay_ms"`
	RefusedBy string      `json:"refused_by"`
	Limits    []limitJSON `json:"limits"`
	Degraded  bool        `json:"degraded"`
	Use       string      `json:"use"`
}

type limitJSON struct {
	Key          string  `json:"key"`
	Rule         string  `json:"rule"`
	Limit        string  `json:"limit"`
	Amount       int64   `json:"amount"`
	PeriodMs     *int64  `json:"period_ms"`
	Remaining    *int64  `json:"remaining"`
	Rate         float64 `json:"rate"`
	RetryAfterMs *int64  `json:"retry_after_ms"`
	ResetMs      *int64  `json:"reset_ms"`
	Degraded     bool    `json:"degraded"`
}

func readAnswer(status int, header http.Header, body []byte) (Result, error) {
	if status == http.StatusOK || status == http.StatusTooManyRequests {
		var told answer
		if err := json.Unmarshal(body, &told); err == nil && told.Allowed != nil {
			return told.result(header), nil
		}
	}
	var problem struct {
		Status         int
		Reason, Detail string
	}
	err := json.Unmarshal(body, &problem)
	if err != nil || problem.Status != status || problem.Reason == "" {
		// A balancer answers like this while the server is replaced, which is no mistake of the
		// caller's.
		text := "%d is not an answer of Tidegate: check the URL and any proxy"
		return Result{}, &Unavailable{ServerError, fmt.Errorf(text, status)}
	}
	if status == http.StatusNotFound && problem.Reason == "path" {
		// The server's other listeners, such as [admin], have not the paths of this one.
		err = errors.New("404 path: check the URL: is this the [http] door?")
		return Result{}, &Unavailable{ServerError, err}
	}
	isWrong := status >= 400 && status < 500
	if isWrong && status != http.StatusRequestTimeout && status != http.StatusTooManyRequests {
		return Result{}, &InvalidRequest{status, problem.Reason, problem.Detail}
	}
	err = fmt.Errorf("the server answered %d %s", status, problem.Reason)
	return Result{}, &Unavailable{ServerError, err}
}

func (a *answer) result(header http.Header) Result {
	result := Result{
		Allowed:   *a.Allowed,
		Delay:     duration(a.DelayMs),
		RefusedBy: a.RefusedBy,
		Limits:    make([]Limit, 0, len(a.Limits)),
		Degraded:  a.Degraded,
		ID:        a.Use,
		Header:    http.Header{},
	}
	for _, l := range a.Limits {
		result.Limits = append(result.Limits, Limit{
			Key: l.Key, Rule: l.Rule, Limit: l.Limit, Amount: l.Amount,
			Period: duration(l.PeriodMs), Remaining: l.Remaining, Rate: l.Rate,
			RetryAfter: duration(l.RetryAfterMs), Reset: duration(l.ResetMs),
			Degraded: l.Degraded,
		})
	}
	for _, name := range handedOn {
		if values := header.Values(name); len(values) > 0 {
			result.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	return result
}

func duration(ms *int64) time.Duration {
	const most = int64(math.MaxInt64 / time.Millisecond)
	switch {
	case ms == nil:
		return Unknown
	case *ms > most:
		return math.MaxInt64
	}
	return time.Duration(*ms) * time.Millisecond
}
