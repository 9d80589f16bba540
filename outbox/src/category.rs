//! What kinds of messages there are, and by what each is sharded.
//!
//! A category stands in exactly one scope. [`categories!`](crate::categories) nests each in its scope,
//! so that two scopes cannot be written down, and makes enums whose numbers are discriminants, so that
//! a number used twice does not compile. Where a program puts together the categories of several
//! crates, [`Registry`] looks at all of them at its start and names every fault.

use std::collections::BTreeMap;
use std::fmt;

/// By what messages are sharded: those of one scope and shard stand in one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ScopeDef {
    /// What the rows hold.
    pub number: i32,
    /// For people.
    pub name: &'static str,
    /// The column of a model that holds the shard's identifier, such as `organization_id`.
    pub shard_column: Option<&'static str>,
    /// The option that lists the shards of this scope that are left alone.
    pub switch: Option<&'static str>,
    /// No longer in use; its number is kept for good.
    pub retired: bool,
}

/// A kind of message, in its scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CategoryDef {
    /// What the rows hold.
    pub number: i32,
    /// For people.
    pub name: &'static str,
    /// The one scope that it stands in.
    pub scope: ScopeDef,
    /// No longer in use: cannot be written, but what is still queued can be delivered.
    pub retired: bool,
}

/// The name of what a program does not know by name.
const UNREGISTERED: &str = "unregistered";

impl ScopeDef {
    /// A scope that this program does not know.
    #[must_use]
    pub fn unregistered(number: i32) -> Self {
        Self {
            number,
            name: UNREGISTERED,
            shard_column: None,
            switch: None,
            retired: false,
        }
    }
}

impl CategoryDef {
    /// A category that this program does not know, of a row in this scope.
    #[must_use]
    pub fn unregistered(number: i32, scope: i32) -> Self {
        Self {
            number,
            name: UNREGISTERED,
            scope: ScopeDef::unregistered(scope),
            retired: false,
        }
    }
}

impl fmt::Display for ScopeDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.number)
    }
}

impl fmt::Display for CategoryDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.number)
    }
}

/// Every category that a program knows, checked.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    categories: BTreeMap<i32, CategoryDef>,
    scopes: BTreeMap<i32, ScopeDef>,
}

/// Categories that do not fit together, all faults at once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the outbox's categories: {}", .faults.join("; "))]
pub struct RegistryError {
    /// What is wrong, each with names and numbers.
    pub faults: Vec<String>,
}

impl Registry {
    /// The categories of a program, such as `Category::ALL` of [`categories!`](crate::categories), or
    /// those of several crates, chained.
    ///
    /// # Errors
    ///
    /// When a category stands in two scopes, a number or a name is used twice, or a category is in use
    /// in a scope that is not.
    pub fn new<C>(categories: impl IntoIterator<Item = C>) -> Result<Self, RegistryError>
    where
        C: Into<CategoryDef>,
    {
        let mut registry = Self::default();
        let mut faults = Vec::new();
        for category in categories {
            registry.add(category.into(), &mut faults);
        }
        if faults.is_empty() {
            Ok(registry)
        } else {
            Err(RegistryError { faults })
        }
    }

    fn add(&mut self, category: CategoryDef, faults: &mut Vec<String>) {
        let scope = category.scope;
        if scope.retired && !category.retired {
            faults.push(format!(
                "category {category} is in use in scope {scope}, which is retired"
            ));
        }
        for known in self.scopes.values() {
            let twin = known.number == scope.number || known.name == scope.name;
            if twin && *known != scope {
                faults.push(format!("scope {scope} is also scope {known}"));
            }
        }
        for known in self.categories.values() {
            let twin = known.number == category.number || known.name == category.name;
            if twin && known.name == category.name && known.scope != scope {
                faults.push(format!(
                    "category {category} is in scope {scope} and in scope {}",
                    known.scope
                ));
            } else if twin && *known != category {
                faults.push(format!("category {category} is also category {known}"));
            }
        }
        self.scopes.entry(scope.number).or_insert(scope);
        self.categories.entry(category.number).or_insert(category);
    }

    /// The category with this number.
    #[must_use]
    pub fn category(&self, number: i32) -> Option<CategoryDef> {
        self.categories.get(&number).copied()
    }

    /// The category with this name, or whose number this is.
    #[must_use]
    pub fn category_named(&self, name: &str) -> Option<CategoryDef> {
        let by_number = name.parse().ok().and_then(|number| self.category(number));
        by_number.or_else(|| {
            let mut all = self.categories.values();
            all.find(|category| same_name(category.name, name)).copied()
        })
    }

    /// The scope with this number. Of a scope without categories nothing is known.
    #[must_use]
    pub fn scope(&self, number: i32) -> Option<ScopeDef> {
        self.scopes.get(&number).copied()
    }

    /// The scope with this name, or whose number this is.
    #[must_use]
    pub fn scope_named(&self, name: &str) -> Option<ScopeDef> {
        let by_number = name.parse().ok().and_then(|number| self.scope(number));
        by_number.or_else(|| {
            let mut all = self.scopes.values();
            all.find(|scope| same_name(scope.name, name)).copied()
        })
    }

    /// Every category, by number.
    pub fn categories(&self) -> impl Iterator<Item = CategoryDef> {
        self.categories.values().copied()
    }

    /// Every scope that has a category, by number.
    pub fn scopes(&self) -> impl Iterator<Item = ScopeDef> {
        self.scopes.values().copied()
    }

    /// A category for people, known or not.
    #[must_use]
    pub fn category_label(&self, number: i32) -> String {
        match self.category(number) {
            Some(category) => category.to_string(),
            None => format!("unknown ({number})"),
        }
    }

    /// A scope for people, known or not.
    #[must_use]
    pub fn scope_label(&self, number: i32) -> String {
        match self.scope(number) {
            Some(scope) => scope.to_string(),
            None => format!("unknown ({number})"),
        }
    }
}

/// `OrganizationMember`, `organization_member` and `ORGANIZATION-MEMBER` are one name.
fn same_name(one: &str, other: &str) -> bool {
    let letters = |name: &str| {
        let kept = name.chars().filter(|c| c.is_alphanumeric());
        kept.flat_map(char::to_lowercase).collect::<String>()
    };
    letters(one) == letters(other)
}

/// Reads the word behind a number in [`categories!`](crate::categories).
#[doc(hidden)]
#[must_use]
pub const fn is_retired(words: &[&str]) -> bool {
    match words {
        [] => false,
        [word] => {
            assert!(
                matches!(word.as_bytes(), b"retired"),
                "behind a number only `retired` may stand"
            );
            true
        }
        _ => panic!("behind a number one word may stand"),
    }
}

/// The first of at most one word.
#[doc(hidden)]
#[must_use]
pub const fn at_most_one(words: &[&'static str]) -> Option<&'static str> {
    match words {
        [] => None,
        [word, ..] => Some(*word),
    }
}

/// Declares an application's categories, each in its scope.
///
/// ```
/// monarch_outbox::categories! {
///     /// What happens in our service.
///     pub enum Category in Scope {
///         /// An organization and what belongs to it.
///         Organization = 0, shard(organization_id), switch("outbox.disabled_organizations") {
///             /// The organization itself.
///             OrganizationUpdate = 2,
///             /// No longer in use.
///             AuthProviderDisabled = 20 retired,
///         }
///         /// A log in which every message counts.
///         AuditLog = 3 {
///             /// One entry.
///             AuditLogEvent = 5,
///         }
///     }
/// }
///
/// let category = Category::OrganizationUpdate.def();
/// assert_eq!((category.number, category.scope.name), (2, "Organization"));
/// assert!(Category::AuthProviderDisabled.def().retired);
/// ```
///
/// A scope may say which column of a model holds its shard (`shard`), and which option lists shards
/// to leave alone (`switch`). Numbers are kept for good: what is no longer used is `retired`, never
/// removed.
///
/// A number used twice does not compile:
///
/// ```compile_fail,E0081
/// monarch_outbox::categories! {
///     /// Ours.
///     pub enum Category in Scope {
///         /// One.
///         One = 0 {
///             /// First.
///             First = 1,
///         }
///         /// Two.
///         Two = 1 {
///             /// Has the number of the first.
///             Second = 1,
///         }
///     }
/// }
/// ```
///
/// Nor does a category in two scopes:
///
/// ```compile_fail,E0428
/// monarch_outbox::categories! {
///     /// Ours.
///     pub enum Category in Scope {
///         /// One.
///         One = 0 {
///             /// First.
///             First = 1,
///         }
///         /// Two.
///         Two = 1 {
///             /// The same.
///             First = 2,
///         }
///     }
/// }
/// ```
#[macro_export]
macro_rules! categories {
    (
        $(#[$meta:meta])*
        $visibility:vis enum $category:ident in $scope:ident {
            $(
                $(#[$scope_meta:meta])*
                $scope_name:ident = $scope_number:literal $($scope_word:ident)?
                $(, shard($shard:ident))? $(, switch($switch:literal))?
                {
                    $(
                        $(#[$category_meta:meta])*
                        $name:ident = $number:literal $($word:ident)?
                    ),* $(,)?
                }
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i32)]
        $visibility enum $category {
            $($( $(#[$category_meta])* $name = $number, )*)*
        }

        /// By what the categories are sharded.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i32)]
        $visibility enum $scope {
            $( $(#[$scope_meta])* $scope_name = $scope_number, )*
        }

        #[allow(dead_code)]
        impl $category {
            /// Every category, in the order of declaration.
            $visibility const ALL: &'static [Self] = &[$($( Self::$name, )*)*];

            /// What the outbox needs to know of it.
            #[must_use]
            $visibility const fn def(self) -> $crate::CategoryDef {
                match self {
                    $($(
                        Self::$name => $crate::CategoryDef {
                            number: $number,
                            name: stringify!($name),
                            scope: $scope::$scope_name.def(),
                            retired: const { $crate::category::is_retired(&[$(stringify!($word))?]) },
                        },
                    )*)*
                }
            }
        }

        #[allow(dead_code)]
        impl $scope {
            /// Every scope, in the order of declaration.
            $visibility const ALL: &'static [Self] = &[$( Self::$scope_name, )*];

            /// What the outbox needs to know of it.
            #[must_use]
            $visibility const fn def(self) -> $crate::ScopeDef {
                match self {
                    $(
                        Self::$scope_name => $crate::ScopeDef {
                            number: $scope_number,
                            name: stringify!($scope_name),
                            shard_column: $crate::category::at_most_one(&[$(stringify!($shard))?]),
                            switch: $crate::category::at_most_one(&[$($switch)?]),
                            retired: const {
                                $crate::category::is_retired(&[$(stringify!($scope_word))?])
                            },
                        },
                    )*
                }
            }
        }

        impl ::core::convert::From<$category> for $crate::CategoryDef {
            fn from(category: $category) -> Self {
                category.def()
            }
        }

        impl ::core::convert::From<&$category> for $crate::CategoryDef {
            fn from(category: &$category) -> Self {
                category.def()
            }
        }

        impl ::core::convert::From<$scope> for $crate::ScopeDef {
            fn from(scope: $scope) -> Self {
                scope.def()
            }
        }
    };
}
