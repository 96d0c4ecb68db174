-- OMOP CDM 5.4: one row a visit: inpatient (9201, intensive care 32037), outpatient (9202), emergency room (9203), or an emergency that
-- led to a stay (262), each with all descendants. A visit that ends before it begins has no days. misses.sql counts what is left aside.
WITH @persons,
@concepts,
@visits
SELECT
    visits.person_id,
    concepts.kind,
    @days start=visits.visit_start_date end=visits.visit_end_date as=days,
    CAST(EXTRACT(YEAR FROM visits.visit_start_date) AS float8) - persons.year_of_birth AS age
FROM visits
JOIN persons ON persons.person_id = visits.person_id
LEFT JOIN concepts ON concepts.concept_id = visits.visit_concept_id
