package wire

import (
	"cmp"
	"fmt"
	"strconv"
)

// Problem is an error as the API answers it: RFC 9457, application/problem+json. Type is ProblemBase followed by Code; programs
// compare Code, people read Detail.
type Problem struct {
	Type     string       `json:"type" doc:"The kind of problem; see the user guide." example:"https://sandbox-run.dev/problems/invalid"`
	Title    string       `json:"title" doc:"The kind of problem, in words."`
	Status   int          `json:"status" doc:"The HTTP status."`
	Detail   string       `json:"detail,omitempty" doc:"What is wrong with this request."`
	Instance string       `json:"instance,omitempty" doc:"Names this very occurrence; also in the server's log."`
	Code     string       `json:"code" doc:"The kind of problem, as one word." example:"invalid"`
	Hint     string       `json:"hint,omitempty" doc:"What to do next."`
	Errors   []FieldError `json:"errors,omitempty" doc:"Each field that is wrong."`
	// Position and RetryAfter are set if the server refused the request because it is busy.
	Position   int `json:"position,omitempty" doc:"Place in the queue at which it would have stood."`
	RetryAfter int `json:"retry_after,omitempty" doc:"Seconds after which it is worth another try."`
}

// FieldError is one wrong field of a request.
type FieldError struct {
	Field   string `json:"field" doc:"The field, such as memory or files[2].path."`
	Message string `json:"message" doc:"What is wrong with it."`
	Ceiling string `json:"ceiling,omitempty" doc:"Of a limit that is above what the operator allows: the most that it may be." example:"1GiB"`
}

// ProblemBase is the prefix of every Type.
const ProblemBase = "https://sandbox-run.dev/problems/"

// The codes of problems. A failed run has one of invalid, refused, unsupported, not_started and internal_error in error.code of
// its result.
const (
	CodeInvalid      = "invalid"          // 422: a field is wrong
	CodeMalformed    = "malformed"        // 400: invalid JSON or invalid HTTP
	CodeTooLarge     = "too_large"        // 413
	CodeTooSlow      = "too_slow"         // 408: the body did not arrive in time
	CodeMediaType    = "media_type"       // 415: the body is not JSON
	CodeUnauthorized = "unauthorized"     // 401: no token, or an unknown one
	CodeForbidden    = "forbidden"        // 403: the token does not allow this
	CodeRefused      = "refused"          // 403: the operator's policy or this machine forbids it
	CodeCeiling      = "above_ceiling"    // 403: a limit above what the operator allows
	CodeNotFound     = "not_found"        // 404: also for what belongs to another owner
	CodeMethod       = "method"           // 405
	CodeNotAccepted  = "not_acceptable"   // 406
	CodeConflict     = "conflict"         // 409: not possible in this state
	CodeGone         = "gone"             // 410: no longer kept
	CodeEnded        = "session_ended"    // 410: the session's interpreter has ended; the detail has the cause
	CodeTooMany      = "too_many"         // 429: the client has used up its own share
	CodeBusy         = "busy"             // 503: the server has no capacity left
	CodeDraining     = "draining"         // 503: the server is shutting down
	CodeUnsupported  = "unsupported"      // 501: this server does not have the feature
	CodeMissing      = "missing"          // 501: the language, or its image, is not installed here
	CodeNotStarted   = "not_started"      // 422: the program could not be started
	CodeInternal     = "internal_error"   // 500: a failure of the server
	CodeCancelled    = "cancelled"        // in a run's error: cancelled before it began
	CodeLost         = "lost"             // in a run's error: the server ended during the run
	CodeClosed       = "client_went_away" // 499: the client has disconnected
)

// DescribeRequests is the next step for a request that does not have the form of the API.
const DescribeRequests = "GET " + PathOpenAPI + ", which describes every request"

// problemTable has the status, the title and the usual next step of each code. Problems with retry_after need no next step.
var problemTable = [...]struct {
	code   string
	status int
	title  string
	hint   string
}{
	{CodeInvalid, 422, "A field of the request is wrong", DescribeRequests},
	{CodeMalformed, 400, "The request is not valid HTTP or JSON", DescribeRequests},
	{CodeTooLarge, 413, "The body is too large", "send less, or send files by PUT " + PathFiles + "/{id} first"},
	{CodeTooSlow, 408, "The body did not arrive in time", "send the body faster, or in parts by PUT " + PathFiles + "/{id}"},
	{CodeMediaType, 415, "The type of the body is not supported", "Content-Type: " + TypeJSON + ", and no Content-Encoding"},
	{CodeUnauthorized, 401, "A valid token of a key is needed", "Authorization: Bearer TOKEN, with the token of a key of this server"},
	{CodeForbidden, 403, "The key does not allow this", "use a key that allows this, or ask the operator of the server for one"},
	{CodeRefused, 403, "Refused by policy", "request less, or ask the operator of the server to allow it"},
	{CodeCeiling, 403, "A limit is above what the operator allows", "request less, or ask the operator of the server to allow more"},
	{CodeNotFound, 404, "The object does not exist", "GET " + PathRuns + ", which lists the runs that are kept"},
	{CodeMethod, 405, "The path does not support the method", DescribeRequests},
	{CodeNotAccepted, 406, "The answer is not available in that type", "leave out the header Accept"},
	{CodeConflict, 409, "Not possible in this state", "repeat the request when the state has changed"},
	{CodeGone, 410, "The object is no longer kept", "submit the run again"},
	{CodeEnded, 410, "The interpreter of the session has ended", "POST " + PathSessions + "/{id}/restart, or close the session"},
	{CodeTooMany, 429, "Your share is used up for now", ""},
	{CodeBusy, 503, "The server is busy", ""},
	{CodeDraining, 503, "The server is shutting down", ""},
	{CodeUnsupported, 501, "This server has no such ability", "leave the field out, or use a server that supports it"},
	{CodeMissing, 501, "A toolchain or image is not installed here", ""},
	{CodeNotStarted, 422, "The program could not be started", "give a program that exists and can be executed inside the sandbox"},
	{CodeCancelled, 409, "The run was cancelled before it began", "submit the run again"},
	{CodeLost, 500, "The server ended while the run was under way", "submit the run again"},
	{CodeClosed, 499, "The client disconnected", ""},
	{CodeInternal, 500, "The server failed", "give the id to the operator of the server"},
}

// NewProblem makes a problem from a code and a detail.
func NewProblem(code, format string, args ...any) *Problem {
	p := &Problem{Type: ProblemBase + code, Code: code, Detail: fmt.Sprintf(format, args...)}
	for _, t := range problemTable {
		if t.code == code {
			p.Status, p.Title, p.Hint = t.status, t.title, t.hint
		}
	}
	return p
}

// WrongField makes a problem about one field, with status and title of the code. Advice at the end of the message is the hint.
func WrongField(code, field, format string, args ...any) *Problem {
	message, advice, _ := CutAdvice(fmt.Sprintf(format, args...))
	p := NewProblem(code, "%s: %s", field, message)
	p.Hint = cmp.Or(advice, p.Hint)
	p.Errors = []FieldError{{Field: field, Message: message}}
	return p
}

func (p *Problem) Error() string {
	text := p.Title
	if p.Detail != "" {
		text = p.Detail
	}
	for _, e := range p.Errors {
		text += "; " + e.Field + ": " + e.Message
	}
	if p.Hint != "" {
		text += "; try: " + p.Hint
	}
	return strconv.Itoa(p.Status) + " " + text
}
