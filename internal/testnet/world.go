package testnet

// Addresses. The supervisor's are the machine's own addresses for programs of a sandbox; all others are servers'.
const (
	Supervisor  = "45.10.0.2"
	Supervisor6 = "2a05:1::2"
	Gateway     = "45.10.0.1" // name server of the supervisor; Log listens here
	Gateway6    = "2a05:1::1"

	Public    = "93.184.216.34" // good.example, front.example
	Public6   = "2606:2800:220:1::34"
	Other     = "93.184.216.35" // bad.example
	Other6    = "2606:2800:220:1::35"
	Resolver  = "93.184.216.53" // a name server that is not the supervisor's
	Private   = "10.1.2.3"
	Private6  = "fd12::3"
	Metadata  = "169.254.169.254"
	Metadata6 = "fd00:ec2::254"
	Carrier   = "100.64.1.1"       // carrier-grade NAT
	Translate = "64:ff9b::a01:203" // NAT64 of Private
	SixToFour = "2002:a01:203::1"  // 6to4 of Private
	Silent    = "93.184.217.1"     // answers nothing
	Mapped    = "::ffff:10.1.2.3"  // Private
)

// Ports of every server's address, beside 53, 80, 443 and 8080.
const (
	EchoPort  = "7"    // TCP and UDP
	SSHPort   = "22"   // greets first, then echoes
	SlowPort  = "9001" // sends a byte every 50 ms, 20 in all
	HalfPort  = "9002" // answers after the end of what the client sends
	ResetPort = "9003" // resets the connection after the first byte
	logPort   = "9"
)

// zone has the addresses of the names of the test's internet. Names that are not here do not exist. A name below wild.example has the
// address of Public; see answer for the names that need more.
var zone = map[string][]string{
	"good.example":        {Public, Public6},
	"front.example":       {Public, Public6},
	"bad.example":         {Other, Other6},
	"example.com":         {Public, Public6}, // of the documents
	"six.example":         {Public6},
	"zero.example":        {Public},
	"slow.example":        {Public},
	"private.example":     {Private},
	"private6.example":    {Private6},
	"metadata.example":    {Metadata},
	"metadata6.example":   {Metadata6},
	"own.example":         {Supervisor},
	"own6.example":        {Supervisor6},
	"loopback.example":    {"127.0.0.1"},
	"loopback6.example":   {"::1"},
	"unspecified.example": {"0.0.0.0"},
	"mapped.example":      {Mapped},
	"translate.example":   {Translate},
	"sixtofour.example":   {SixToFour},
	"mixed.example":       {Private, Public},
	"silent.example":      {Silent},
}

// Names with special answers.
const (
	Rebinding   = "rebind.example" // Public at first, Private after the first answer
	Chain       = "chain.example"  // an alias of an alias of Public
	InwardChain = "inward.example" // an alias of private.example
	Huge        = "huge.example"   // more addresses than a datagram has room for; the first is Public
	wild        = ".wild.example"  // a suffix
	slow        = "slow.example"   // its answer takes a while
	noCache     = "zero.example"   // its answers may not be kept
	InfoPath    = "/"              // of a web server: its address, and the host that it was asked for
	BytesPath   = "/bytes?n="      // as many bytes
	MovedPath   = "/moved?to="     // a redirection
	infoFormat  = "%s says hello as %s"
	greeting    = "SSH-2.0-test\r\n"
)

// Event is what a server has seen.
type Event struct {
	Service string `json:"service"`        // tcp, udp, http, tls, proxy, dns
	Local   string `json:"local"`          // address and port of the server
	Remote  string `json:"remote"`         // address of the client
	Host    string `json:"host,omitempty"` // that the client has named
	Data    []byte `json:"data,omitempty"` // datagrams and DNS messages
}
