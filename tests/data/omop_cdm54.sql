-- Tables of the OMOP CDM 5.4 that the recipes read, with the names and types of OHDSI's DDL for PostgreSQL (keys left out):
-- https://ohdsi.github.io/CommonDataModel/cdm54.html

CREATE TABLE person (
    person_id integer,
    gender_concept_id integer,
    year_of_birth integer,
    month_of_birth integer,
    day_of_birth integer,
    birth_datetime timestamp,
    race_concept_id integer,
    ethnicity_concept_id integer,
    location_id integer,
    provider_id integer,
    care_site_id integer,
    person_source_value varchar(50),
    gender_source_value varchar(50),
    gender_source_concept_id integer,
    race_source_value varchar(50),
    race_source_concept_id integer,
    ethnicity_source_value varchar(50),
    ethnicity_source_concept_id integer
);

CREATE TABLE observation_period (
    observation_period_id integer,
    person_id integer,
    observation_period_start_date date,
    observation_period_end_date date,
    period_type_concept_id integer
);

CREATE TABLE visit_occurrence (
    visit_occurrence_id integer,
    person_id integer,
    visit_concept_id integer,
    visit_start_date date,
    visit_start_datetime timestamp,
    visit_end_date date,
    visit_end_datetime timestamp,
    visit_type_concept_id integer,
    provider_id integer,
    care_site_id integer,
    visit_source_value varchar(50),
    visit_source_concept_id integer,
    admitted_from_concept_id integer,
    admitted_from_source_value varchar(50),
    discharged_to_concept_id integer,
    discharged_to_source_value varchar(50),
    preceding_visit_occurrence_id integer
);

CREATE TABLE condition_occurrence (
    condition_occurrence_id integer,
    person_id integer,
    condition_concept_id integer,
    condition_start_date date,
    condition_start_datetime timestamp,
    condition_end_date date,
    condition_end_datetime timestamp,
    condition_type_concept_id integer,
    condition_status_concept_id integer,
    stop_reason varchar(20),
    provider_id integer,
    visit_occurrence_id integer,
    visit_detail_id integer,
    condition_source_value varchar(50),
    condition_source_concept_id integer,
    condition_status_source_value varchar(50)
);

CREATE TABLE drug_exposure (
    drug_exposure_id integer,
    person_id integer,
    drug_concept_id integer,
    drug_exposure_start_date date,
    drug_exposure_start_datetime timestamp,
    drug_exposure_end_date date,
    drug_exposure_end_datetime timestamp,
    verbatim_end_date date,
    drug_type_concept_id integer,
    stop_reason varchar(20),
    refills integer,
    quantity numeric,
    days_supply integer,
    sig text,
    route_concept_id integer,
    lot_number varchar(50),
    provider_id integer,
    visit_occurrence_id integer,
    visit_detail_id integer,
    drug_source_value varchar(50),
    drug_source_concept_id integer,
    route_source_value varchar(50),
    dose_unit_source_value varchar(50)
);

CREATE TABLE measurement (
    measurement_id integer,
    person_id integer,
    measurement_concept_id integer,
    measurement_date date,
    measurement_datetime timestamp,
    measurement_time varchar(10),
    measurement_type_concept_id integer,
    operator_concept_id integer,
    value_as_number numeric,
    value_as_concept_id integer,
    unit_concept_id integer,
    range_low numeric,
    range_high numeric,
    provider_id integer,
    visit_occurrence_id integer,
    visit_detail_id integer,
    measurement_source_value varchar(50),
    measurement_source_concept_id integer,
    unit_source_value varchar(50),
    unit_source_concept_id integer,
    value_source_value varchar(50),
    measurement_event_id integer,
    meas_event_field_concept_id integer
);

CREATE TABLE death (
    person_id integer,
    death_date date,
    death_datetime timestamp,
    death_type_concept_id integer,
    cause_concept_id integer,
    cause_source_value varchar(50),
    cause_source_concept_id integer
);

CREATE TABLE concept_ancestor (
    ancestor_concept_id integer,
    descendant_concept_id integer,
    min_levels_of_separation integer,
    max_levels_of_separation integer
);
