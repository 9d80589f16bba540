//! The categories of Sentry, so that its outboxes can be looked into and drained as they are. Numbers
//! are kept for good; what is retired stays.

crate::categories! {
    /// What its outboxes hold.
    pub enum Category in Scope {
        /// An organization and what belongs to it.
        Organization = 0, shard(organization_id),
            switch("hybrid_cloud.authentication.disabled_organization_shards")
        {
            /// The organization itself.
            OrganizationUpdate = 2,
            /// A member.
            OrganizationMemberUpdate = 3,
            /// A project.
            ProjectUpdate = 8,
            /// A team.
            TeamUpdate = 11,
            /// An integration of an organization.
            OrganizationIntegrationUpdate = 12,
            /// A signal of the application, passed on.
            SendSignal = 14,
            /// The customer of an organization.
            OrganizationMappingCustomerIdUpdate = 15,
            /// An organization's token was used.
            OrgAuthTokenUsed = 16,
            /// An organization was provisioned.
            PostOrganizationProvision = 18,
            /// No longer in use.
            DisableAuthProvider = 20 retired,
            /// Flags of an identity provider are reset.
            ResetIdpFlags = 21,
            /// Single sign-on no longer holds.
            MarkInvalidSso = 22,
            /// An auth provider.
            AuthProviderUpdate = 24,
            /// A member of a team.
            OrganizationMemberTeamUpdate = 26,
            /// A reserved slug.
            OrganizationSlugReservationUpdate = 27,
            /// An API key.
            ApiKeyUpdate = 28,
            /// An account at a partner.
            PartnerAccountUpdate = 29,
            /// Never used.
            UnusedThree = 31 retired,
            /// An organization's token.
            OrgAuthTokenUpdate = 33,
            /// A comment.
            IssueCommentUpdate = 34,
            /// An invoice.
            SendVercelInvoice = 38,
            /// A consent.
            FtcConsent = 39,
            /// A project's key.
            ProjectKeyUpdate = 45,
            /// Integrations are filled in.
            ScmIntegrationBackfill = 46,
            /// An avatar.
            OrganizationAvatarUpdate = 47,
            /// A run begins.
            SeerRunCreate = 48,
        }
        /// A user.
        User = 1, shard(user_id), switch("hybrid_cloud.authentication.disabled_user_shards") {
            /// The user.
            UserUpdate = 0,
            /// Never used.
            UnusedOne = 4 retired,
            /// Never used.
            UnusedTwo = 13 retired,
            /// Never used.
            UnusedFour = 19 retired,
            /// A way to log in.
            AuthIdentityUpdate = 25,
            /// An identity elsewhere.
            IdentityUpdate = 43,
        }
        /// No longer in use.
        Webhook = 2 retired {
            /// No longer in use.
            WebhookProxy = 1 retired,
        }
        /// A log in which every entry counts.
        AuditLog = 3 {
            /// An entry.
            AuditLogEvent = 5,
        }
        /// Where users come from: many, and apart from what users are.
        UserIp = 4, shard(user_id) {
            /// An address.
            UserIpEvent = 6,
        }
        /// An integration.
        Integration = 5, shard(integration_id) {
            /// The integration.
            IntegrationUpdate = 7,
            /// Somebody elsewhere.
            ExternalActorUpdate = 35,
        }
        /// An application.
        App = 6, shard(api_application_id) {
            /// The application.
            ApiApplicationUpdate = 9,
            /// An installation.
            SentryAppInstallationUpdate = 10,
            /// The app.
            SentryAppUpdate = 30,
            /// A hook.
            ServiceHookUpdate = 40,
            /// The app goes.
            SentryAppDelete = 41,
            /// An installation goes.
            SentryAppInstallationDelete = 42,
        }
        /// No longer in use.
        Team = 7 retired {
        }
        /// Rare and critical: apart from everything.
        Provision = 8 {
            /// An organization is provisioned.
            ProvisionOrganization = 17,
        }
        /// A subscription.
        Subscription = 9 {
            /// The subscription.
            SubscriptionUpdate = 23,
        }
        /// No longer in use.
        Relocation = 10 retired {
            /// No longer in use.
            RelocationExportRequest = 36 retired,
            /// No longer in use.
            RelocationExportReply = 37 retired,
        }
        /// A token.
        ApiToken = 11, shard(api_token_id) {
            /// The token.
            ApiTokenUpdate = 32,
        }
        /// Actions.
        Action = 12 {
            /// Actions are put in order.
            NormalizeActions = 44,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Category, Scope};
    use crate::Registry;

    #[test]
    fn every_number_from_0_to_48_has_its_category() {
        let registry = Registry::new(Category::ALL);
        let registry = registry.unwrap_or_else(|error| panic!("{error}"));
        assert!((0..=48).all(|number| registry.category(number).is_some()));
        assert_eq!((Category::ALL.len(), Scope::ALL.len()), (49, 13));
    }
}
