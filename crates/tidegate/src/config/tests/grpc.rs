//! What is wrong with the table of the gRPC door, and with TLS, as the file's author reads it.

use super::check;

#[test]
fn a_use_in_flight_lapses_after_requests_are_over() {
    check(
        "[grpc]\nhold = '25h'",
        &["t:2:8: 25h is not a valid time for uses to lapse; \
           write a span from \"1s\" to \"24h\", longer than requests last"],
    );
}

#[test]
fn names_of_clients_need_certificates_and_can_be_read() {
    let table = |names: &str| format!("[grpc]\ntls = {{ cert = 'a', key = 'b'{names} }}");
    check(
        &table(", client_names = ['a.example']"),
        &["t:2:7: without `client_ca` clients present no certificates; \
           add `client_ca`: the certificates that must have signed the clients'"],
    );
    check(
        &table(", client_ca = 'c', client_names = []"),
        &["t:2:7: without any name no client could connect; \
           write at least one, or leave `client_names` out: then any name is accepted"],
    );
    check(
        &table(", client_ca = 'c', client_names = ['*.example']"),
        &["t:2:64: \"*.example\" is not a name that a certificate can have; \
           write a DNS name without `*`, an IP address, or a URI like \
           \"spiffe://example.com/envoy\""],
    );
}
