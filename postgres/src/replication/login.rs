//! The start of a replication session: startup packet and authentication.

use std::collections::BTreeMap;

use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{
    ChannelBinding as SaslBinding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256,
};
use postgres_protocol::message::backend::{AuthenticationSaslBody, Message};
use postgres_protocol::message::frontend;

use super::wire::Wire;
use crate::ServerError;
use crate::connect::{ChannelBinding, Login};

/// What the server says of itself and of the session.
pub(super) struct Greeting {
    pub(super) parameters: BTreeMap<String, String>,
    pub(super) process_id: i32,
    pub(super) secret: i32,
}

pub(super) async fn log_in(wire: &mut Wire, login: &Login<'_>) -> Result<Greeting, ServerError> {
    let parameters = [
        ("user", login.user),
        ("database", login.dbname),
        ("replication", "database"),
        ("application_name", login.application_name),
        ("options", login.options.as_str()),
    ];
    frontend::startup_message(parameters, wire.output()).map_err(unwritable)?;
    wire.send().await?;
    authenticate(wire, login).await?;
    greeting(wire).await
}

fn refused(why: &str) -> ServerError {
    ServerError::Authentication(why.to_owned())
}

/// What is written has a NUL in it or is too long.
pub(super) fn unwritable(_: std::io::Error) -> ServerError {
    ServerError::Protocol("a message to the server cannot be written".into())
}

fn unexpected() -> ServerError {
    ServerError::Protocol("an unexpected message while logging in".into())
}

async fn authenticate(wire: &mut Wire, login: &Login<'_>) -> Result<(), ServerError> {
    let message = wire.message().await?;
    if let Message::AuthenticationSasl(body) = message {
        scram(wire, login, &body).await?;
    } else {
        if let Message::ErrorResponse(body) = &message {
            return Err(body.into());
        }
        if login.channel_binding == ChannelBinding::Require {
            return Err(refused("the server did not use channel binding"));
        }
        match message {
            Message::AuthenticationOk => return Ok(()),
            // Over a network without TLS this request does not get here: see the transport.
            Message::AuthenticationCleartextPassword => {
                let password = password(login)?.as_bytes();
                frontend::password_message(password, wire.output()).map_err(unwritable)?;
            }
            Message::AuthenticationMd5Password(body) => {
                let password = password(login)?.as_bytes();
                let hash = md5_hash(login.user.as_bytes(), password, body.salt());
                frontend::password_message(hash.as_bytes(), wire.output()).map_err(unwritable)?;
            }
            Message::AuthenticationKerberosV5
            | Message::AuthenticationGss
            | Message::AuthenticationSspi
            | Message::AuthenticationScmCredential => {
                return Err(refused(
                    "the server asks for a method that is not supported",
                ));
            }
            _ => return Err(unexpected()),
        }
        wire.send().await?;
    }
    match wire.message().await? {
        Message::AuthenticationOk => Ok(()),
        Message::ErrorResponse(body) => Err((&body).into()),
        _ => Err(unexpected()),
    }
}

fn password<'a>(login: &Login<'a>) -> Result<&'a str, ServerError> {
    login
        .password
        .ok_or_else(|| refused("the server asks for a password, and none is given"))
}

/// SCRAM, bound to the server's certificate where both sides can.
async fn scram(
    wire: &mut Wire,
    login: &Login<'_>,
    offered: &AuthenticationSaslBody,
) -> Result<(), ServerError> {
    let offered: Vec<String> = offered
        .mechanisms()
        .map(|mechanism| Ok(mechanism.to_owned()))
        .collect()
        .map_err(|_| unexpected())?;
    let offers = |mechanism: &str| offered.iter().any(|offered| offered == mechanism);
    let binding = match login.channel_binding {
        ChannelBinding::Disable => None,
        ChannelBinding::Prefer | ChannelBinding::Require => wire.transport().binding(),
    };
    let (mechanism, binding) = match binding {
        Some(hash) if offers(SCRAM_SHA_256_PLUS) => (
            SCRAM_SHA_256_PLUS,
            SaslBinding::tls_server_end_point(hash.to_vec()),
        ),
        _ if login.channel_binding == ChannelBinding::Require => {
            return Err(refused("channel binding is required and cannot be had"));
        }
        // This tells the server that we could have: it notices if its offer was tampered with.
        Some(_) if offers(SCRAM_SHA_256) => (SCRAM_SHA_256, SaslBinding::unrequested()),
        None if offers(SCRAM_SHA_256) => (SCRAM_SHA_256, SaslBinding::unsupported()),
        _ => return Err(refused("the server offers no method that is supported")),
    };
    let mut scram = ScramSha256::new(password(login)?.as_bytes(), binding);
    frontend::sasl_initial_response(mechanism, scram.message(), wire.output())
        .map_err(unwritable)?;
    wire.send().await?;
    match wire.message().await? {
        Message::AuthenticationSaslContinue(body) => {
            let read = scram.update(body.data());
            read.map_err(|_| refused("the server's SCRAM challenge is not valid"))?;
        }
        Message::ErrorResponse(body) => return Err((&body).into()),
        _ => return Err(unexpected()),
    }
    frontend::sasl_response(scram.message(), wire.output()).map_err(unwritable)?;
    wire.send().await?;
    match wire.message().await? {
        Message::AuthenticationSaslFinal(body) => scram
            .finish(body.data())
            .map_err(|_| refused("the server does not prove that it knows the password")),
        Message::ErrorResponse(body) => Err((&body).into()),
        _ => Err(unexpected()),
    }
}

async fn greeting(wire: &mut Wire) -> Result<Greeting, ServerError> {
    let mut greeting = Greeting {
        parameters: BTreeMap::new(),
        process_id: 0,
        secret: 0,
    };
    loop {
        match wire.message().await? {
            Message::ParameterStatus(body) => {
                if let (Ok(name), Ok(value)) = (body.name(), body.value()) {
                    let (name, value) = (name.to_owned(), value.to_owned());
                    greeting.parameters.insert(name, value);
                }
            }
            Message::BackendKeyData(body) => {
                greeting.process_id = body.process_id();
                greeting.secret = body.secret_key();
            }
            Message::ReadyForQuery(_) => return Ok(greeting),
            Message::ErrorResponse(body) => return Err((&body).into()),
            _ => return Err(unexpected()),
        }
    }
}
