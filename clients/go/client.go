// Package tidegate asks a Tidegate server whether a request is within its limits.
//
// It uses the standard library alone. A Client may be used by many goroutines.
package tidegate

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// OnError says what is decided where the server gives no answer.
type OnError int

const (
	// Allow lets a request pass: a limiter that is down does not take the service down with it.
	Allow OnError = iota
	// Deny refuses it.
	Deny
)

// releaseTimeoutMin is how long a release may take at least: a use that is not given back stays
// taken until it lapses.
const releaseTimeoutMin = time.Second

// answerBytesMax bounds what is read of an answer.
const answerBytesMax = 1 << 20

// Config has the settings of a client. Its zero value is good.
type Config struct {
	// Server is the URL of the HTTP door; else TIDEGATE_SERVER, else http://127.0.0.1:8080.
	Server string
	// Timeout is how long an answer may take; else TIDEGATE_TIMEOUT_MS, else 100 ms. A request
	// that waits has its longest wait besides.
	Timeout time.Duration
	// OnError says what is decided without an answer.
	OnError OnError
	// MaxConnections bounds the checks that are asked at once: 64 unless set.
	MaxConnections int
	// MaxWaiting bounds the requests that wait at once: 1024 unless set.
	MaxWaiting int
	// TLS is for a server whose certificate the system does not trust, or that asks for one.
	TLS *tls.Config
}

// Client asks one server. It keeps connections open.
type Client struct {
	base    string
	timeout time.Duration
	onError OnError
	http    *http.Client
	// Requests that wait have places of their own, so that they leave some for the others.
	places, waitingPlaces chan struct{}
}

// New makes a client. It fails if a setting is wrong, and connects when it is asked something.
func New(config Config) (*Client, error) {
	server := firstOf(config.Server, os.Getenv("TIDEGATE_SERVER"), "http://127.0.0.1:8080")
	base, err := url.Parse(server)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Hostname() == "" ||
		base.RawQuery != "" || base.User != nil {
		return nil, notAServer(server)
	}
	if port := base.Port(); port != "" {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return nil, notAServer(server)
		}
	}
	if config.MaxConnections < 0 || config.MaxWaiting < 0 {
		return nil, errors.New("tidegate: MaxConnections and MaxWaiting must not be negative")
	}
	timeout := config.Timeout
	if timeout == 0 {
		text := firstOf(os.Getenv("TIDEGATE_TIMEOUT_MS"), "100")
		ms, err := strconv.ParseInt(text, 10, 32)
		if err != nil || ms <= 0 {
			return nil, fmt.Errorf("tidegate: TIDEGATE_TIMEOUT_MS: %q is not a number above 0", text)
		}
		timeout = time.Duration(ms) * time.Millisecond
	}
	if timeout <= 0 {
		return nil, errors.New("tidegate: the timeout must be above 0")
	}
	connections, waiting := config.MaxConnections, config.MaxWaiting
	if connections == 0 {
		connections = 64
	}
	if waiting == 0 {
		waiting = 1024
	}
	transport := &http.Transport{
		// No proxy of the environment stands before a limiter.
		Proxy:                  nil,
		DialContext:            (&net.Dialer{Timeout: timeout}).DialContext,
		TLSClientConfig:        config.TLS,
		TLSHandshakeTimeout:    timeout,
		MaxIdleConns:           connections,
		MaxIdleConnsPerHost:    connections,
		IdleConnTimeout:        60 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
	}
	return &Client{
		base:    strings.TrimRight(base.String(), "/"),
		timeout: timeout,
		onError: config.OnError,
		http: &http.Client{
			Transport: transport,
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse
			},
		},
		places:        make(chan struct{}, connections),
		waitingPlaces: make(chan struct{}, waiting),
	}, nil
}

func notAServer(server string) error {
	shown := strconv.Quote(server)
	if strings.Contains(server, "@") {
		shown = "a URL with a user" // It may have a password in it.
	}
	return fmt.Errorf("tidegate: %s is not a URL such as http://127.0.0.1:8080", shown)
}

func firstOf(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}

// Close closes the connections that are idle.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
}

// question is the body of a check or a wait.
type question struct {
	Key       *string  `json:"key,omitempty"`
	Keys      []string `json:"keys,omitempty"`
	Cost      int64    `json:"cost"`
	Peek      bool     `json:"peek,omitempty"`
	HoldMs    *int64   `json:"hold_ms,omitempty"`
	MaxWaitMs *int64   `json:"max_wait_ms,omitempty"`

	maxWait time.Duration
}

// Option is one of Cost, Keys, Peek and MaxWait.
type Option func(*question)

// Cost is how many uses are taken, in place of one.
func Cost(uses int64) Option {
	return func(q *question) { q.Cost = uses }
}

// Keys are more keys than the first: all of them, or none. For Check and Hold.
func Keys(more ...string) Option {
	return func(q *question) { q.Keys = append(q.Keys, more...) }
}

// Peek only looks, and takes nothing. For Check.
func Peek() Option {
	return func(q *question) { q.Peek = true }
}

// MaxWait lets Hold wait until the use is allowed; only with a single key.
func MaxWait(longest time.Duration) Option {
	return func(q *question) { q.wait(longest) }
}

func (q *question) wait(longest time.Duration) {
	q.MaxWaitMs, q.maxWait = ms(longest), longest
}

// ms is a duration in whole milliseconds, rounded up.
func ms(d time.Duration) *int64 {
	whole := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		whole++
	}
	return &whole
}

// Check takes a use of a key.
//
// The error is not nil if the request is wrong or ctx is over. A server that gives no answer is no
// error: then the client's OnError decides, and Result.Err says why.
func (c *Client) Check(ctx context.Context, key string, options ...Option) (Result, error) {
	q := ask([]string{key}, options)
	if q.MaxWaitMs != nil {
		return Result{}, &InvalidRequest{Reason: "max_wait", Detail: "Check does not wait: use Wait"}
	}
	return c.decide(ctx, q)
}

// Wait waits for at most maxWait until a use of a key is allowed, and takes it. It leaves the
// server's line when ctx is over. A negative maxWait is an *InvalidRequest.
func (c *Client) Wait(
	ctx context.Context, key string, maxWait time.Duration, options ...Option,
) (Result, error) {
	q := ask([]string{key}, options)
	q.wait(maxWait)
	return c.decide(ctx, q)
}

// Use is a use in flight, if it is Allowed.
type Use struct {
	Result
	client *Client
}

// Hold takes a use in flight. Release gives it back; without that it lapses after holdFor.
//
//	use, err := client.Hold(ctx, "jobs", time.Minute)
//	if err != nil {
//		return err
//	}
//	defer use.Release()
func (c *Client) Hold(
	ctx context.Context, key string, holdFor time.Duration, options ...Option,
) (*Use, error) {
	q := ask([]string{key}, options)
	q.HoldMs = ms(holdFor)
	result, err := c.decide(ctx, q)
	if err != nil {
		return nil, err
	}
	return &Use{result, c}, nil
}

// Release gives the use back: false if there is none, or none any more. It has a time of its own
// and works after the context of Hold is over. If it fails, it can be repeated; otherwise the use
// lapses.
func (u *Use) Release() (bool, error) {
	if u.ID == "" {
		return false, nil
	}
	released, err := u.client.Release(context.Background(), u.ID)
	if err == nil {
		u.ID = ""
	}
	return released, err
}

// Release gives a held use back by its Result.ID: false if it had ended or lapsed. It waits for no
// place, has a second at least, and is tried twice.
func (c *Client) Release(ctx context.Context, id string) (bool, error) {
	released, err := c.release(ctx, id)
	if unavailable := (*Unavailable)(nil); errors.As(err, &unavailable) {
		return c.release(ctx, id)
	}
	return released, err
}

func (c *Client) release(ctx context.Context, id string) (bool, error) {
	path := "/v1/uses/" + url.PathEscape(id)
	within := c.releaseTimeout()
	status, header, body, err := c.exchange(ctx, http.MethodDelete, path, nil, within, nil)
	if err != nil {
		return false, err
	}
	if status == http.StatusNoContent {
		return true, nil
	}
	_, err = readAnswer(status, header, body)
	var invalid *InvalidRequest
	if errors.As(err, &invalid) && invalid.Reason == "unknown_use" {
		return false, nil
	}
	if err == nil {
		err = &Unavailable{Kind: ServerError, Err: errors.New("the server sent an unexpected answer")}
	}
	return false, err
}

func (c *Client) releaseTimeout() time.Duration {
	if c.timeout < releaseTimeoutMin {
		return releaseTimeoutMin
	}
	return c.timeout
}

func ask(keys []string, options []Option) *question {
	q := &question{Cost: 1, Keys: keys}
	for _, option := range options {
		option(q)
	}
	return q
}

// decide asks, and falls back to OnError.
func (c *Client) decide(ctx context.Context, q *question) (Result, error) {
	for _, key := range q.Keys {
		if err := examine(key); err != nil {
			return Result{}, err
		}
	}
	if q.maxWait < 0 {
		return Result{}, &InvalidRequest{Reason: "max_wait", Detail: "the wait is negative"}
	}
	path := "/v1/check"
	if q.MaxWaitMs != nil {
		if path = "/v1/wait"; len(q.Keys) != 1 {
			return Result{}, &InvalidRequest{Reason: "keys", Detail: "a single key can wait"}
		}
		q.Key, q.Keys = &q.Keys[0], nil
	}
	asked, err := json.Marshal(q)
	if err != nil {
		return Result{}, err
	}
	places, within := c.places, c.timeout+q.maxWait
	if q.maxWait > 0 {
		places = c.waitingPlaces
	}
	if within < q.maxWait {
		within = math.MaxInt64
	}
	status, header, body, err := c.exchange(ctx, http.MethodPost, path, asked, within, places)
	result := Result{}
	if err == nil {
		result, err = readAnswer(status, header, body)
	}
	var unavailable *Unavailable
	if errors.As(err, &unavailable) {
		return c.withoutAnswer(err), nil
	}
	return result, err
}

// withoutAnswer is what OnError decides.
func (c *Client) withoutAnswer(err error) Result {
	result := Result{Allowed: c.onError == Allow, Degraded: true, Err: err}
	if !result.Allowed {
		result.Delay = Unknown
	}
	return result
}

// exchange sends one request and reads its answer whole. It takes one of the places, if it is
// given any.
func (c *Client) exchange(
	caller context.Context, method, path string, body []byte, within time.Duration,
	places chan struct{},
) (int, http.Header, []byte, error) {
	fail := func(err error) (int, http.Header, []byte, error) {
		// Whoever asked has gone: that says nothing about the server.
		if caller.Err() != nil {
			return 0, nil, nil, caller.Err()
		}
		return 0, nil, nil, unavailable(err)
	}
	ctx, cancel := context.WithTimeout(caller, within)
	defer cancel()
	if places != nil {
		full := time.NewTimer(c.timeout)
		defer full.Stop()
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		case <-full.C:
			return fail(context.DeadlineExceeded)
		case <-ctx.Done():
			return fail(ctx.Err())
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	// net/http repeats a request on a new connection where the server had closed an idle one, but a
	// POST only with this name, which it does not send.
	request.Header["X-Idempotency-Key"] = nil
	response, err := c.http.Do(request)
	if err != nil {
		return fail(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, answerBytesMax+1))
	if err == nil && len(answer) > answerBytesMax {
		err = &Unavailable{Kind: ServerError, Err: errors.New("the answer is too long")}
	}
	if err != nil {
		return fail(err)
	}
	return response.StatusCode, response.Header, answer, nil
}
